"""What this machine grants a process: interfaces, limits, and the kernel features that failure detection uses."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import resource
import socket
import struct
from dataclasses import dataclass

from ..process.facts import number_in
from ..world.processes.procfs import control_groups, process_start_time, text_of
from ..world.processes.vitals import open_pidfd

SIOCGIFCONF = 0x8912
SIOCGIFFLAGS = 0x8913
IFF_UP = 0x1
IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux: a name of 16 bytes, then a union of 24
MAX_ADDRESSES = 4096


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface of this process's network namespace; ``addresses`` in text, IPv4 first."""

    name: str
    up: bool
    addresses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the process may use. ``None`` for a number: unlimited, or not to be found out on this system."""

    cores: int
    open_files_soft: int | None
    open_files_hard: int | None
    user_processes: int | None
    kernel_threads: int | None
    cgroup_threads: int | None
    listen_backlog: int | None
    shm_free_bytes: int | None
    shm_total_bytes: int | None
    pidfd: bool
    proc_stat: bool
    tcp_user_timeout: bool


def limits() -> Limits:
    """Read the limits that are in force now for this process."""
    open_files_soft, open_files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm_free_bytes, shm_total_bytes = _filesystem("/dev/shm")
    return Limits(
        cores=len(os.sched_getaffinity(0)),
        open_files_soft=_finite(open_files_soft),
        open_files_hard=_finite(open_files_hard),
        user_processes=_finite(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        kernel_threads=number_in("/proc/sys/kernel/threads-max"),
        cgroup_threads=_cgroup_threads(),
        listen_backlog=number_in("/proc/sys/net/core/somaxconn"),
        shm_free_bytes=shm_free_bytes,
        shm_total_bytes=shm_total_bytes,
        pidfd=_has_pidfd(),
        proc_stat=process_start_time(os.getpid()) is not None,
        tcp_user_timeout=_has_tcp_user_timeout(),
    )


def interfaces() -> tuple[Interface, ...]:
    """Return every interface with an address, in the kernel's order of their names."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, address in _ipv4_addresses(probe) + _ipv6_addresses():
            found.setdefault(name, []).append(address)
        return tuple(Interface(name=name, up=_is_up(probe, name), addresses=tuple(found[name])) for name in found)


def _ipv4_addresses(probe: socket.socket) -> list[tuple[str, str]]:
    requests = array.array("B", bytes(IFREQ_BYTES * MAX_ADDRESSES))
    address, _ = requests.buffer_info()
    answer = fcntl.ioctl(probe, SIOCGIFCONF, struct.pack("iP", len(requests), address))
    size_bytes, _ = struct.unpack("iP", answer)
    raw = requests.tobytes()[:size_bytes]
    entries = (raw[start : start + IFREQ_BYTES] for start in range(0, size_bytes, IFREQ_BYTES))
    return [(_interface_of(entry), socket.inet_ntoa(entry[20:24])) for entry in entries]


def _interface_of(entry: bytes) -> str:
    # A secondary address may carry a label such as "eth0:1"; it belongs to eth0.
    return entry[:16].split(b"\0", 1)[0].decode(errors="replace").split(":", 1)[0]


def _ipv6_addresses() -> list[tuple[str, str]]:
    rows = (line.split() for line in text_of("/proc/net/if_inet6").splitlines())
    return [(row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in rows]


def _is_up(probe: socket.socket, name: str) -> bool:
    answer = fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
    flags: int = struct.unpack_from("H", answer, 16)[0]
    return bool(flags & IFF_UP)


def _has_pidfd() -> bool:
    descriptor = open_pidfd(os.getpid())
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _has_tcp_user_timeout() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1500)
        except OSError:
            return False
    return True


def _cgroup_threads() -> int | None:
    """Return ``pids.max`` of this process's cgroup (version 2), the limit that containers set."""
    for controllers, path in control_groups(text_of("/proc/self/cgroup")):
        if not controllers:
            return number_in(f"/sys/fs/cgroup{path.rstrip('/')}/pids.max")
    return None


def _filesystem(path: str) -> tuple[int | None, int | None]:
    try:
        status = os.statvfs(path)
    except OSError:
        return None, None
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit

"""Everything about processes of this host that ``/proc`` tells beyond what ``world.processes.procfs`` reads for worlds.

A ``/proc`` that is not mounted, or hides other users' processes, tells nothing: the answer is None, or empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..world.processes.procfs import boot_id, namespace, stat_fields, text_of

GPUS = Path("/proc/driver/nvidia/gpus")
LISTENING = "0A"  # in the column "st" of /proc/net/tcp


# ---- this process


def count_threads() -> int:
    """Raises OSError: a caller that is about to fork must know."""
    return len(os.listdir("/proc/self/task"))


def open_descriptors() -> list[int]:
    """Return the numbers; one of them was of this very look, and is closed again. Raises OSError."""
    return [int(name) for name in os.listdir("/proc/self/fd")]


def libraries(name: str) -> list[str]:
    """Return the paths of the files in this process's memory whose paths contain ``name``, sorted. Raises OSError."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if name in line}
    return sorted(path for path in paths if path.startswith("/"))


def rss_bytes() -> int | None:
    """Return what this process has in memory, pages that it shares counted in full."""
    return parse_rss(text_of("/proc/self/statm"), os.sysconf("SC_PAGE_SIZE"))


def pss_bytes() -> int | None:
    """Return what this process has in memory, of pages that k processes share the k-th part.

    For a large process this blocks for a tenth of a second or more: the kernel adds the pages up.
    """
    return parse_pss(text_of("/proc/self/smaps_rollup"))


def proportional_bytes(*kinds: str) -> int:
    """Return the sum of these fields of ``/proc/self/smaps_rollup``, such as ``Pss_Anon``; blocks as ``pss_bytes``."""
    rollup = text_of("/proc/self/smaps_rollup")
    return 1024 * sum(int(value.split()[0]) for kind in kinds if (value := _field(rollup, kind)) is not None)


def parse_rss(statm: str, page_bytes: int) -> int | None:
    """Return the bytes that ``/proc/…/statm`` tells of; None if it could not be read."""
    fields = statm.split()
    return int(fields[1]) * page_bytes if len(fields) > 1 else None


def parse_pss(rollup: str) -> int | None:
    """Return the bytes that ``/proc/…/smaps_rollup`` tells of; None if it could not be read."""
    value = _field(rollup, "Pss")
    return None if value is None else int(value.split()[0]) * 1024


def process_space() -> str:
    """Return what is the same wherever numbers of processes mean the same ones; empty if that cannot be told."""
    return _space("pid")


def network_space() -> str:
    """Return what is the same wherever a loopback address is the same place; empty if that cannot be told."""
    return _space("net")


def _space(kind: str) -> str:
    boot, number = boot_id(), namespace(kind)
    return f"{boot} {kind}:[{number}]" if boot and number is not None else ""


# ---- other processes


class Listener(NamedTuple):
    """A process that listens."""

    pid: int
    name: str


def find_listener(port: int) -> Listener | None:
    """Return a process that listens at that TCP port; None if there is none, or it is another user's."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for name in os.listdir("/proc"):
        if name.isdecimal() and not sockets.isdisjoint(open_files(name)):
            command = text_of(f"/proc/{name}/comm")
            if command:  # else it has ended
                return Listener(int(name), command.strip())
    return None


def unix_sockets() -> str:
    """Return the table of the Unix sockets in this network namespace; empty if it cannot be read."""
    return text_of("/proc/net/unix")


def catches_signal(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal, so that it does not die of it."""
    return _has_signal(text_of(f"/proc/{pid}/status"), "SigCgt", signum)


def is_pending(pid: int, signum: int) -> bool:
    """Whether a signal that was sent to the process, as a whole, still waits for a thread that takes it."""
    return _has_signal(text_of(f"/proc/{pid}/status"), "ShdPnd", signum)


def threads_blocking(pid: int, signum: int) -> set[int]:
    """Return the threads of a process that block the signal: among them one that runs its handler now."""
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
    return {int(each) for each in threads if _has_signal(text_of(f"/proc/{pid}/task/{each}/status"), "SigBlk", signum)}


def open_files(pid: int | str = "self") -> Iterator[str]:
    """Yield what the descriptors of a process lead to; nothing if it has ended, or is another user's."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(f"{folder}/{name}")


def processor_time_s(pid: int) -> float:
    """Return how long a process has computed, in user mode and in the kernel; 0 if it is gone or hidden."""
    fields = stat_fields(pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- the machine


def number_in(path: str) -> int | None:
    """Return the number that a file holds; None if it holds another text, or is not there."""
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None


def cpu_model() -> str | None:
    name = _field(text_of("/proc/cpuinfo"), "model name")
    return None if name is None else " ".join(name.split())


def gpu_models() -> list[str]:
    """Return the name of each GPU that NVIDIA's kernel module knows, without a driver library or torch."""
    texts = [text_of(str(each)) for each in sorted(GPUS.glob("*/information"))]
    return [(_field(text, "Model") or "NVIDIA GPU").strip() for text in texts]


# ---- below


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text_of(table).splitlines()[1:]:
            columns = line.split()
            local, state, inode = columns[1], columns[3], columns[9]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                yield inode


def _has_signal(status: str, kind: str, signum: int) -> bool:
    signals = _field(status, kind)
    return signals is not None and bool(int(signals, 16) >> (signum - 1) & 1)


def _field(text: str, wanted: str) -> str | None:
    """Of a file of lines ``name: value``."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == wanted:
            return value
    return None


def resident_bytes() -> int:
    """Return how much memory this process has resident, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

"""The two kinds of addresses that processes find each other at: numeric ones, and names on one host.

Host names are turned into addresses once, where a user gives them: nothing else knows them. A name on one host begins
with a NUL and stands for a Unix socket in Linux's abstract namespace: it leaves no file behind and ends with its owner.
Any user of the host could connect to it, so both ends ask the kernel who the other one is.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct

CREDENTIALS = struct.Struct("=iii")  # struct ucred: pid, uid, gid


def local_name(text: str) -> str:
    """Return a name that processes of this host can connect to."""
    return f"\0multiworld-{text}"


def is_local(host: str) -> bool:
    return host.startswith("\0")


def family_of(host: str) -> socket.AddressFamily:
    if is_local(host):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def address_of(host: str, port: int) -> tuple[str, int] | str:
    """Return what ``bind`` and ``connect`` take; a name has no port."""
    return host if is_local(host) else (host, port)


def listen_at(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens there, and does not block; port 0 picks a free one. Raises OSError."""
    sock = socket.socket(family_of(host), socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address_of(host, port))
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def can_listen_at(host: str) -> bool:
    """Whether that numeric address is one of this host's."""
    with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def is_ours(sock: socket.socket) -> bool:
    """Whether the other end of a Unix socket belongs to this user. True for every other socket."""
    if sock.family != socket.AF_UNIX:
        return True
    _, uid, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return bool(uid == os.geteuid())


def show(host: str, port: int) -> str:
    """Return an address for people."""
    return host[1:] if is_local(host) else f"{host}:{port}"


def resolve(host: str) -> str:
    """Return a numeric address; blocks for DNS unless ``host`` is one already. Raises OSError."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def addresses_of(name: str) -> list[str]:
    """Return all numeric addresses of a host's name, IPv4 first; blocks for DNS. Raises OSError with a ``strerror``."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # no name can be like that
        raise OSError(errno.EINVAL, "that is no name") from error
    return [str(each[4][0]) for each in sorted(found, key=lambda each: each[0] != socket.AF_INET)]


def is_address(host: str) -> bool:
    """Return whether ``host`` is a numeric IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

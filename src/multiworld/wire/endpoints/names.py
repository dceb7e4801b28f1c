"""Turn host names into addresses, once, where a user gives them: nothing below knows names."""

from __future__ import annotations

import errno
import ipaddress
import socket


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

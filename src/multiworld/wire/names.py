"""Turn host names into addresses, once, where a user gives them: nothing below knows names."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["is_address", "resolve"]


def resolve(host: str) -> str:
    """Return a numeric address; blocks for DNS unless ``host`` is one already. Raises OSError."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def is_address(host: str) -> bool:
    """Return whether ``host`` is a numeric IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

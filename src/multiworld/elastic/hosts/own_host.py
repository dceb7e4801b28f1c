"""Whether a name that a user gives for a host means this one."""

from __future__ import annotations

import getpass
import socket

from ...wire.endpoints.addresses import addresses_of, can_listen_at, is_address


def is_this_host(name: str) -> bool:
    """``name`` as ssh takes it: a host, perhaps after ``user@``; another user's place here is another place.

    Blocks for DNS unless it is this host's own name. A name that cannot be resolved may mean something to ssh alone.
    """
    user, _, host = name.rpartition("@")
    if user and user != _user():
        return False
    if host in ("localhost", socket.gethostname()):
        return True
    if is_address(host):
        return can_listen_at(host)
    try:
        found = addresses_of(host)
    except OSError:
        return False
    return bool(found) and all(map(can_listen_at, found))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number without a name, as in some containers
        return ""

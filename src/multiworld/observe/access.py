"""Decide who may read the page. Pure."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence

__all__ = ["is_loopback", "may_read"]


def is_loopback(host: str) -> bool:
    """Whether only processes of this host reach a server at that numeric address."""
    address = ipaddress.ip_address(host)
    if address.version == 6 and address.ipv4_mapped is not None:  # some releases of Python look at the outside alone
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def may_read(token: str, authorization: str, query: Mapping[str, Sequence[str]]) -> bool:
    """Whether a request shows the token: ``Authorization: Bearer TOKEN``, or ``?token=TOKEN`` for browsers.

    An empty token lets nobody in.
    """
    kind, _, shown = authorization.partition(" ")
    candidates = [shown.strip()] if kind.lower() == "bearer" else []
    candidates += query.get("token", [])
    return bool(token) and any(hmac.compare_digest(each.encode(), token.encode()) for each in candidates)

"""Records that define something for later records, as a plan does: a node that comes back needs them first. Pure.

A kind of record that defines something has a line in ``_DEFINE``, and the kind that takes it back one in ``_FORGET``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from . import graphs, records
from .records import HEAD, Kind

_KIND: Final = struct.Struct("<I")


class Change(NamedTuple):
    """``record``: what defines ``key`` from now on; None: it is forgotten."""

    key: Hashable
    record: bytes | None


_DEFINE: Final[dict[int, Callable[[bytes], Hashable]]] = {
    Kind.DEFINE: lambda body: records.read_define(body)[0],
    Kind.GRAPH: lambda body: graphs.key_of(graphs.read_number(body)),
}
_FORGET: Final[dict[int, Callable[[bytes], Hashable]]] = {
    Kind.FORGET: records.read_forget,
    Kind.FORGET_GRAPH: lambda body: graphs.key_of(graphs.read_number(body)),
}
HEADS: Final = frozenset(_KIND.pack(kind) for kind in (*_DEFINE, *_FORGET))
"""The first bytes of the records that change what is defined."""


def change_by(record: bytes) -> Change:
    """Return what a record changes, whose first bytes are among ``HEADS``."""
    kind, body = _KIND.unpack_from(record)[0], record[HEAD.size :]
    if kind in _DEFINE:
        return Change(_DEFINE[kind](body), record)
    return Change(_FORGET[kind](body), None)

"""What etcd's gateway answers, as far as a rendezvous reads it. Pure.

Numbers of 64 bits come as text, and what is zero or empty may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...wire.messages import Json


@dataclass(frozen=True, kw_only=True)
class Header:
    """``revision`` counts the changes of the whole store."""

    revision: str

    def __post_init__(self) -> None:
        int(self.revision)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A key's value. ``mod_revision``: the revision that changed it last."""

    value: bytes = b""
    lease: str = "0"
    mod_revision: str

    def __post_init__(self) -> None:
        int(self.lease)
        int(self.mod_revision)


@dataclass(frozen=True, kw_only=True)
class Range:
    """What is under the keys that were asked for."""

    header: Header
    kvs: tuple[Entry, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """``succeeded``: what was expected holds."""

    succeeded: bool = False


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A new one."""

    id: str = field(metadata={"json": "ID"})

    def __post_init__(self) -> None:
        int(self.id)


@dataclass(frozen=True, kw_only=True)
class KeptLease:
    """``ttl_s``: zero or less if it has run out."""

    ttl_s: str = field(default="0", metadata={"json": "TTL"})

    def __post_init__(self) -> None:
        int(self.ttl_s)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What happened to the keys that are watched; ``canceled``: nothing more will be told."""

    events: tuple[Json, ...] | None = None
    canceled: bool = False


@dataclass(frozen=True, kw_only=True)
class Authenticated:
    """``token``: what later requests must carry."""

    token: str


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """It was done."""

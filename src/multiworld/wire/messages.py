"""Turn the messages between our processes into JSON and back: one codec, one registry of kinds. Pure.

A message is a frozen dataclass with a kind, which is what the wire calls it. Those that two processes may exchange form
a ``MessageSet``. Its type is a union, so mypy sees every kind::

    @message("stop")
    @dataclass(frozen=True, kw_only=True)
    class Stop:
        workers: tuple[str, ...]
        grace_s: float

    Order = Start | Stop
    ORDERS: MessageSet[Order] = MessageSet("orders", Order, tag="say")
    ORDERS.encode(Stop(workers=("w1",), grace_s=5.0))  # {"say":"stop","workers":["w1"],"grace_s":5.0}

Fields may be bool, int, float, str, bytes, None, ``Json``, a Literal of strings, an Enum, a frozen dataclass, a
NamedTuple, ``tuple``, ``frozenset``, ``Mapping[str, ...]``, and unions of what looks different in JSON. Two dataclasses
in one union need a kind each. A field that this release does not know is skipped, or kept in a field with the metadata
``REST``; one that it misses takes its default. One with ``field(metadata={"json": "from"})`` has that name in JSON,
which may be a word that Python keeps for itself; one with ``{"none": {}}`` has an empty object there in place of null.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from ..errors import MessageError
from .json_forms import (
    KINDS,
    MAX_DEPTH,
    REST,
    SHOWN,
    SPARSE,
    Json,
    RefusalError,
    by_kind,
    is_json,
    look_at,
    record_form,
    shown_type,
)

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MESSAGE_SETS",
    "REST",
    "Json",
    "MessageSet",
    "decode",
    "encode",
    "from_json",
    "is_json",
    "look_ahead",
    "message",
    "parse",
    "sparse",
    "to_json",
]

MAX_BYTES: Final = 16 * 1024 * 1024

Class = TypeVar("Class", bound=type)
Value = TypeVar("Value")
M = TypeVar("M")

MESSAGE_SETS: dict[str, MessageSet[Any]] = {}
"""Every set of messages that was defined, by its name."""


def message(kind: str) -> Callable[[Class], Class]:
    """Register a frozen dataclass under its kind on the wire."""

    def register(cls: Class) -> Class:
        KINDS[cls] = kind
        return cls

    return register


def sparse(cls: Class) -> Class:
    """Leave out what has its default, where the receiver may not know the field, or many are told."""
    SPARSE.add(cls)
    return cls


class MessageSet(Generic[M]):
    """The messages that may come over one link. ``union``: their classes; ``tag``: the key of the kind in JSON."""

    def __init__(self, name: str, union: type[M] | types.UnionType, *, tag: str, max_bytes: int = MAX_BYTES) -> None:
        """Raises TypeError if one of them has no kind, or two have the same; ValueError if the name is taken."""
        if name in MESSAGE_SETS:
            raise ValueError(f"there are messages called {name!r} already")
        self.name, self.tag, self._max_bytes = name, tag, max_bytes
        self.classes: tuple[type[M], ...] = typing.get_args(union) or (typing.cast("type[M]", union),)
        self._by_kind = by_kind(self.classes, tag)
        MESSAGE_SETS[name] = self

    def __repr__(self) -> str:
        return f"<MessageSet {self.name!r}: {', '.join(self._by_kind)}>"

    def to_json(self, message: M) -> dict[str, Any]:
        """Return what ``from_json`` takes. Raises TypeError or ValueError for what it would refuse."""
        if type(message) not in self.classes:
            raise TypeError(f"{type(message).__name__} is none of the {self.name}")
        return {self.tag: KINDS[type(message)], **to_json(message)}

    def misplaced(self, message: M, why: str) -> MessageError:
        """Return the error to raise for a message that is well formed, and makes no sense here."""
        return MessageError(KINDS[type(message)], self.tag, why)

    def from_json(self, fields: object) -> M:
        """Raises MessageError for what is no message of this set."""
        if type(fields) is not dict:
            raise MessageError("", "", f"an object is needed, not {shown_type(fields)}")
        kind = fields.get(self.tag)
        cls = self._by_kind.get(kind) if type(kind) is str else None
        if cls is None:
            shown = kind if type(kind) is str else ""
            why = f"none of the {self.name} is of this kind" if shown else "a kind is needed"
            raise MessageError(shown[:SHOWN], self.tag, why)
        read: M = _read(cls, fields, KINDS[cls])
        return read

    def encode(self, message: M) -> bytes:
        """Return compact JSON. Raises TypeError or ValueError for what ``decode`` would refuse."""
        data = _ENCODER.encode(self.to_json(message)).encode()
        if len(data) > self._max_bytes:
            kind = KINDS[type(message)]
            raise ValueError(f"a message {kind!r} of {len(data)} bytes is longer than {self._max_bytes}")
        return data

    def decode(self, data: bytes | bytearray | memoryview) -> M:
        """Raises MessageError for everything that ``encode`` could not have made, or a later release of it."""
        if len(data) > self._max_bytes:
            raise MessageError("", "", f"it has {len(data)} bytes, more than {self._max_bytes}")
        return self.from_json(parse(data))


def look_ahead(*classes: type) -> None:
    """Find out now how these look in JSON, and the messages of all sets: forked processes then share that."""
    look_at((*classes, *(cls for each in MESSAGE_SETS.values() for cls in each.classes)))


def to_json(value: object) -> dict[str, Any]:
    """Return a frozen dataclass as JSON, without a kind: for a message inside another format."""
    try:
        packed: dict[str, Any] = record_form(type(value)).pack(value)
    except RefusalError as refusal:
        raise ValueError(f"{type(value).__name__}: {refusal.field}: {refusal.why}") from None
    except RecursionError:
        raise ValueError(f"{type(value).__name__} is nested too deeply") from None
    return packed


def from_json(cls: type[Value], fields: object) -> Value:
    """Return the frozen dataclass that ``to_json`` made ``fields`` of. Raises MessageError."""
    return _read(cls, fields, _kind_of(cls))


def encode(value: object) -> bytes:
    """Return a frozen dataclass as compact JSON, without a kind: what frames it says what it is."""
    return _ENCODER.encode(to_json(value)).encode()


def decode(cls: type[Value], data: bytes | bytearray | memoryview) -> Value:
    """Return the frozen dataclass that ``encode`` made ``data`` of. Raises MessageError."""
    return from_json(cls, parse(data, _kind_of(cls)))


def parse(data: bytes | bytearray | memoryview, kind: str = "") -> object:
    """Return JSON of any kind. Raises MessageError for what is none."""
    try:
        fields: object = _DECODER.decode(str(data, "utf-8"))
    except RecursionError:
        raise MessageError(kind, "", "it is nested too deeply") from None
    except ValueError as error:
        raise MessageError(kind, "", f"it is no JSON: {str(error)[:SHOWN]}") from None
    return fields


def _read(cls: type[Value], fields: object, kind: str) -> Value:
    try:
        value: Value = record_form(cls).unpack(fields)
    except RefusalError as refusal:
        raise MessageError(kind, refusal.field, refusal.why) from None
    except RecursionError:
        raise MessageError(kind, "", "it is nested too deeply") from None
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _kind_of(cls: type) -> str:
    return KINDS.get(cls, cls.__name__)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)

"""The records of a batch of commands: those of plans are numbers only, and a few others are built in. Pure.

A record begins with a number. From ``FIRST_PLAN`` on it is a plan's, and the plan knows its layout
(``Template.numbers``). Below it is the kind of a built-in record, followed by its size and its body. Both sides count
the records: a node names one that failed by its position in the stream.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ...errors import ProtocolError
from . import specs
from .specs import Spec

HEAD: Final = struct.Struct("<II")
FIRST_PLAN: Final = 64
MAX_ID: Final = 2**63
_ID: Final = struct.Struct("<Q")
_FETCH: Final = struct.Struct("<QQ")
_SEED: Final = struct.Struct("<Q")
_PLAN: Final = struct.Struct("<I")
_LOAD: Final = struct.Struct("<QI")
_PASSED: Final = struct.Struct("<IQ")


class Kind(IntEnum):
    """The built-in records."""

    DEFINE = 1
    """A plan: its number and its template."""
    FORGET = 2
    """A plan that is not used any more."""
    FREE = 3
    """Ids whose tensors the master gave up."""
    LOAD = 4
    """A small tensor with its bytes."""
    ARRIVED = 5
    """A large tensor that came, or comes, over the bulk lane."""
    FETCH = 6
    """Send a tensor to the master."""
    SEED = 7
    """Seed the generators of the node."""
    ASK = 8
    """Call an operator whose outcome the master cannot foresee, and tell it."""
    SYNC = 9
    """Tell the master that all before this was executed."""
    RELEASE = 16
    """Ids to be freed once other streams have executed what may use them."""
    RECORD = 17
    """An event: an id that other streams wait for."""
    WAIT = 18
    """Go on once an event was recorded."""
    END = 19
    """The last record of a stream."""
    KEEP_GENERATOR = 20
    """Keep the state of the generator of the node's CPU as a tensor."""
    RESTORE_GENERATOR = 21
    """Give the generator the state that such a tensor has."""
    SEND_TO = 30
    """Send a tensor to another node."""
    RECEIVE_FROM = 31
    """Receive a tensor from another node."""
    COLLECTIVE = 32
    """Take part in a collective of several nodes."""
    LEAVE = 33
    """Leave the world of several nodes, once what was begun in it has ended."""
    GRAPH = 40
    """A graph: many calls that are kept (``graphs.py``)."""
    REPLAY = 41
    """Run a graph once."""
    FORGET_GRAPH = 42
    """A graph that is not run any more."""


class Passed(NamedTuple):
    """All records of ``stream`` before ``position``."""

    stream: int
    position: int


class Release(NamedTuple):
    """``passed``: what must be executed before the ids are freed."""

    ids: tuple[int, ...]
    passed: tuple[Passed, ...]


class Fetch(NamedTuple):
    id: int
    request: int


class Ask(NamedTuple):
    """One call: its template, the ids of its tensors, its floats; ``outputs``: ids for what it returns.

    ``outputs`` are more ids than needed: how many tensors come is what is asked.
    """

    request: int
    template: bytes
    ids: tuple[int, ...]
    floats: tuple[float, ...]
    outputs: tuple[int, ...]


def record(kind: IntEnum, body: bytes) -> bytes:
    return HEAD.pack(kind, len(body)) + body


def define(number: int, template: bytes) -> bytes:
    return record(Kind.DEFINE, _PLAN.pack(number) + template)


def read_define(body: bytes) -> tuple[int, bytes]:
    number = unpack(_PLAN, body[:4])[0]
    if number < FIRST_PLAN:
        raise ProtocolError(f"plan {number}: plans are numbered from {FIRST_PLAN}")
    return number, body[4:]


def forget(number: int) -> bytes:
    return record(Kind.FORGET, _PLAN.pack(number))


def read_forget(body: bytes) -> int:
    return int(unpack(_PLAN, body)[0])


def free(ids: Iterable[int]) -> bytes:
    given = list(ids)
    return record(Kind.FREE, struct.pack(f"<{len(given)}Q", *given))


def read_free(body: bytes) -> tuple[int, ...]:
    if len(body) % 8:
        raise ProtocolError(f"a list of ids of {len(body)} bytes")
    return struct.unpack(f"<{len(body) // 8}Q", body)


def release(ids: Iterable[int], passed: Iterable[Passed]) -> bytes:
    given, others = list(ids), list(passed)
    body = [_PLAN.pack(len(others)), *(_PASSED.pack(*each) for each in others), struct.pack(f"<{len(given)}Q", *given)]
    return record(Kind.RELEASE, b"".join(body))


def read_release(body: bytes) -> Release:
    num_others = unpack(_PLAN, body[: _PLAN.size])[0]
    end = _PLAN.size + num_others * _PASSED.size
    if end > len(body):
        raise ProtocolError(f"{num_others} streams in a record of {len(body)} bytes")
    passed = tuple(Passed(*each) for each in _PASSED.iter_unpack(body[_PLAN.size : end]))
    return Release(read_free(body[end:]), passed)


def load(id_: int, spec: Spec, memory: bytes | memoryview) -> bytes:
    shown = json.dumps(specs.to_json(spec), separators=(",", ":")).encode()
    return b"".join(
        (HEAD.pack(Kind.LOAD, _LOAD.size + len(shown) + len(memory)), _LOAD.pack(id_, len(shown)), shown, memory)
    )


def read_load(body: bytes) -> tuple[int, Spec, bytes]:
    id_, size = unpack(_LOAD, body[: _LOAD.size])
    end = _LOAD.size + size
    return id_, specs.from_json(_parse(body[_LOAD.size : end])), body[end:]


def arrived(id_: int) -> bytes:
    return record(Kind.ARRIVED, _ID.pack(id_))


def read_arrived(body: bytes) -> int:
    return int(unpack(_ID, body)[0])


def fetch(id_: int, request: int) -> bytes:
    return HEAD.pack(Kind.FETCH, _FETCH.size) + _FETCH.pack(id_, request)


def read_fetch(body: bytes) -> Fetch:
    return Fetch(*unpack(_FETCH, body))


def seed(value: int) -> bytes:
    return record(Kind.SEED, _SEED.pack(value % 2**64))


def read_seed(body: bytes) -> int:
    return int(unpack(_SEED, body)[0])


def ask(question: Ask) -> bytes:
    shown = [
        question.request,
        question.template.decode(),
        list(question.ids),
        [each.hex() for each in question.floats],
        list(question.outputs),
    ]
    return record(Kind.ASK, json.dumps(shown, separators=(",", ":")).encode())


def read_ask(body: bytes) -> Ask:
    try:
        request, template, ids, floats, outputs = _parse(body)
        question = Ask(
            request, template.encode(), tuple(ids), tuple(float.fromhex(each) for each in floats), tuple(outputs)
        )
        if any(type(each) is not int or not 0 <= each < MAX_ID for each in (request, *ids, *outputs)):
            raise ValueError("an impossible id")
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a bad question: {error}") from None
    return question


def keep_generator(id_: int) -> bytes:
    return record(Kind.KEEP_GENERATOR, _ID.pack(id_))


def restore_generator(id_: int) -> bytes:
    return record(Kind.RESTORE_GENERATOR, _ID.pack(id_))


def read_generator(body: bytes) -> int:
    """Return the id of the tensor with the state."""
    return int(unpack(_ID, body)[0])


def record_event(id_: int) -> bytes:
    return record(Kind.RECORD, _ID.pack(id_))


def wait_event(id_: int) -> bytes:
    return record(Kind.WAIT, _ID.pack(id_))


def read_event(body: bytes) -> int:
    return int(unpack(_ID, body)[0])


def end() -> bytes:
    return record(Kind.END, b"")


def sync(request: int) -> bytes:
    return record(Kind.SYNC, _ID.pack(request))


def read_sync(body: bytes) -> int:
    return int(unpack(_ID, body)[0])


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a bad record: {error}") from None


def unpack(layout: struct.Struct, body: bytes) -> tuple[Any, ...]:
    """Return the numbers of a body. Raises ProtocolError for one of another size."""
    if len(body) != layout.size:
        raise ProtocolError(f"a record of {len(body)} bytes that should have {layout.size}")
    return layout.unpack(body)

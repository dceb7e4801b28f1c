"""What goes between nodes: records to send, receive and reduce, and what nodes tell each other. Pure."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import ProtocolError
from ...wire.messages import MessageSet, message
from . import specs
from .checks import count, text
from .messages import Failed
from .records import MAX_ID, Kind, record, unpack
from .specs import Spec

FAILURES: Final = 1
"""The tag of what a node tells another one of copies that do not come, and of inputs of collectives."""
HEARD: Final = 2
"""The tag of the answers to ``Lacks``."""
FIRST_COPY: Final = 1024
"""The copy to the tensor with id N has the tag FIRST_COPY + N."""
_SEND: Final = struct.Struct("<QIIQ")
_RECEIVE: Final = struct.Struct("<QIII")
_LEAVE: Final = struct.Struct("<I")


class SendTo(NamedTuple):
    """Send the tensor ``id`` to a rank of a world; it becomes the tensor ``target`` there."""

    id: int
    world: int
    rank: int
    target: int


class ReceiveFrom(NamedTuple):
    """``label``: operation and line of the copy, for the error of one that does not come."""

    id: int
    world: int
    rank: int
    spec: Spec
    label: str


class Collective(NamedTuple):
    """``name``: as the method of a world. ``sequence``: collectives of one world run in its order.

    ``group``: the same on all nodes. ``op``: a reduce operation, or empty. ``reads``, ``writes``: ids of tensors, whose
    ``inputs`` are the specs in that order; ``makes``: ids of new ones, with their ``specs``.
    """

    world: int
    sequence: int
    group: int
    name: str
    op: str
    root: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    makes: tuple[int, ...]
    inputs: tuple[Spec, ...]
    specs: tuple[Spec, ...]
    label: str


def send_to(send: SendTo) -> bytes:
    return record(Kind.SEND_TO, _SEND.pack(*send))


def read_send_to(body: bytes) -> SendTo:
    return SendTo(*unpack(_SEND, body))


def receive_from(receive: ReceiveFrom) -> bytes:
    shown = json.dumps([specs.to_json(receive.spec), receive.label], separators=(",", ":")).encode()
    return record(Kind.RECEIVE_FROM, _RECEIVE.pack(receive.id, receive.world, receive.rank, len(shown)) + shown)


def read_receive_from(body: bytes) -> ReceiveFrom:
    id_, world, rank, _ = unpack(_RECEIVE, body[: _RECEIVE.size])
    try:
        spec, label = json.loads(body[_RECEIVE.size :])
        return ReceiveFrom(id_, world, rank, specs.from_json(spec), text(label))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a bad record of a copy: {error}") from None


def collective(said: Collective) -> bytes:
    inputs, made = ([specs.to_json(each) for each in several] for several in (said.inputs, said.specs))
    shown = [*said[:-3], inputs, made, said.label]
    return record(Kind.COLLECTIVE, json.dumps(shown, separators=(",", ":")).encode())


def read_collective(body: bytes) -> Collective:
    try:
        *numbers, name, op, root, reads, writes, makes, inputs, made, label = json.loads(body)
        world, sequence, group = numbers
        said = Collective(
            world,
            sequence,
            group,
            text(name),
            text(op),
            root,
            tuple(reads),
            tuple(writes),
            tuple(makes),
            tuple(specs.from_json(each) for each in inputs),
            tuple(specs.from_json(each) for each in made),
            text(label),
        )
        for each in (world, sequence, group, root, *said.reads, *said.writes, *said.makes):
            count(each, MAX_ID)
        if len(said.makes) != len(said.specs):
            raise ValueError(f"{len(said.makes)} new tensors with {len(said.specs)} specs")
        if len(said.reads) + len(said.writes) != len(said.inputs):
            raise ValueError(f"{len(said.reads)} + {len(said.writes)} inputs with {len(said.inputs)} specs")
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a bad record of a collective: {error}") from None
    return said


def leave(world: int) -> bytes:
    return record(Kind.LEAVE, _LEAVE.pack(world))


def read_leave(body: bytes) -> int:
    return int(unpack(_LEAVE, body)[0])


@message("not_sent")
@dataclass(frozen=True, kw_only=True)
class NotSent:
    """The tensor that was to become ``target`` is lost here, too, and why."""

    target: int
    failed: Failed


@message("not_taken")
@dataclass(frozen=True, kw_only=True)
class NotTaken:
    """There is no room here for what was to become ``target``: do not send it."""

    target: int


@message("lacks")
@dataclass(frozen=True, kw_only=True)
class Lacks:
    """The sender takes part in the collective with that number without one of its inputs, and why."""

    sequence: int
    failed: Failed


ToPeer = NotSent | NotTaken | Lacks
TO_PEER: MessageSet[ToPeer] = MessageSet("what a node tells another one", ToPeer, tag="say")

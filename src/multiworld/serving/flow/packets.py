"""How requests travel over an edge: many small ones in one message, large tensors beside them. No pickle.

A packet is some bytes, sent as a tensor ``[n]`` uint8, or as a list of tensors that begins with it:

    version, number of records
    records of items: kind, flags, attempt, deaths, origin, id, time budget, sizes; description; context
    records of notes: kind, a number, ids
    the payloads of up to ``INLINE_BYTES``, each aligned; the tensors of larger ones follow the packet in the list

The time budget is what is left of the request's deadline when the packet leaves: hosts need no common clock.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ...channel.base import Payload
from ...channel.payload.small_message import Received, SmallMessage
from ...channel.payload.tensors import Layout, describe, memory_of, parse_layout, payload_segments
from ...errors import ProtocolError
from ...wire.memory.copying import ALIGNMENT
from .context import EMPTY, RequestContext
from .context import decode as decode_context
from .context import encode as encode_context
from .error_answer import ErrorAnswer
from .payloads import Packed

VERSION: Final = 1
INLINE_BYTES: Final = 64 << 10
ID_BYTES: Final = 16
HEAD: Final = struct.Struct("<BxxxI")
RECORD: Final = struct.Struct("<BBHHHIIQd16s")
"""Kind, flags, attempt, deaths, origin, description, context, size, budget, id."""
REPLAYED: Final = 1
_PADDING: Final = bytes(ALIGNMENT)


class Kind:
    """What a record says.

    Downstream go ITEM, ERROR, CANCEL (nobody wants it any more, here and further down), DROP (another replica has done
    it), CLEARED (it need not be executed alone), RECALL (give it back unless it was begun), GO, PROMPT (say at once
    what was EXECUTED, or not any more) and OPEN (more may come, or nothing new until it is said again). The others come
    back; ASK goes up to the gateways: does anybody wait for these?
    """

    ITEM: Final = 1
    ERROR: Final = 2
    CANCEL: Final = 3
    GO: Final = 4
    ACCEPTED: Final = 5
    RELEASED: Final = 6
    STARTED: Final = 7
    GRANT: Final = 8
    DROP: Final = 9
    RECALL: Final = 10
    RETURNED: Final = 11
    ASK: Final = 12
    EXECUTED: Final = 13
    PROMPT: Final = 14
    OPEN: Final = 15
    CLEARED: Final = 16


class Note(NamedTuple):
    """A record without a payload: ids that something is said of, or a number."""

    kind: int
    ids: Sequence[bytes] = ()
    number: float = 0.0


class _Packet:
    """What came, in which payloads lie inline: a small message, or a tensor. ``is_single``: of one item alone."""

    __slots__ = ("_small_message", "_tensor", "_views", "is_single", "memory")

    def __init__(self, small_message: SmallMessage | None, tensor: Tensor | None) -> None:
        self._small_message, self._tensor = small_message, tensor
        if small_message is not None:
            self.memory = small_message.memory
        else:
            assert tensor is not None
            self.memory = memory_of(tensor)
        self.is_single = False
        self._views: dict[torch.dtype, Tensor] = {}  # of that tensor as other types, which all payloads share

    def payload(self, layout: Layout, offset: int) -> Payload:
        """Return what lies at an offset, as views of this."""
        if self._small_message is not None:
            one = self._small_message.tensor(layout, offset, alone=self.is_single)
            if one is not None:
                return one
        if self._tensor is None:
            self._tensor = torch.frombuffer(self.memory, dtype=torch.uint8)
        return layout.at(self._tensor, offset, self._views)


class Item:
    """One request on one edge: where it belongs, what is known of it, and its payload.

    ``id``: 16 bytes. ``origin``: the number of the gateway that waits for the answer. ``attempt``: of that gateway.
    ``deaths``: of replicas that held it. ``replayed``: some replica may have executed it before.
    ``source``: the stage that it came from, as the receiver knows.
    """

    __slots__ = (
        "attempt", "context", "deadline", "deaths", "id", "kind", "meta", "offset", "origin", "packed", "packet",
        "replayed", "size_bytes", "source", "tensors",
    )  # fmt: skip

    def __init__(self, kind: int, id_: bytes, origin: int, deadline: float = math.inf) -> None:
        self.kind, self.id, self.origin, self.deadline = kind, id_, origin, deadline
        self.attempt = 1
        self.deaths = 0
        self.replayed = False
        self.context: RequestContext = EMPTY
        self.meta = b""
        self.size_bytes = 0
        self.tensors: list[Tensor] = []
        self.packed: Packed | None = None  # instead of tensors
        self.packet: _Packet | None = None  # in which the payload came inline, from the offset on
        self.offset = 0
        self.source = ""

    def __repr__(self) -> str:
        return (
            f"<Item {self.id.hex()[:8]} attempt {self.attempt} of gateway-{self.origin} from {self.source or 'here'}>"
        )

    @property
    def payload(self) -> Payload:
        """The tensors; of what came inline, views of the packet."""
        if self.packed is not None:
            return self.packed.tensor
        layout = parse_layout(self.meta, self.size_bytes)
        return layout.of(self.tensors) if self.packet is None else self.packet.payload(layout, self.offset)

    def carry(self, payload: Payload | Packed) -> Item:
        """Make this the payload: contiguous CPU tensors, which must not be changed any more."""
        self.packed, self.packet = None, None
        if isinstance(payload, Packed):
            self.packed, self.meta, self.size_bytes, self.tensors = payload, payload.meta, len(payload.memory), []
        elif isinstance(payload, Tensor):
            self.meta, self.tensors, self.size_bytes = describe(payload), [payload], payload.nbytes
        else:
            self.meta, segments, self.tensors = payload_segments(payload)
            self.size_bytes = sum(map(len, segments))
        return self

    def carry_error(self, error: ErrorAnswer) -> Item:
        """Make this an error, which goes to the gateway in the answer's place."""
        self.kind = Kind.ERROR
        return self.carry(torch.frombuffer(bytearray(error.encode()), dtype=torch.uint8))

    @property
    def error(self) -> ErrorAnswer:
        """What an error carries."""
        payload = self.payload
        if not isinstance(payload, Tensor):
            raise ProtocolError("an error that is no text")
        return ErrorAnswer.decode(bytes(memory_of(payload)))

    def successor(self, kind: int = Kind.ITEM) -> Item:
        """Return what goes on in this one's place, still without a payload."""
        item = Item(kind, self.id, self.origin, self.deadline)
        item.attempt, item.replayed, item.context = self.attempt, self.replayed, self.context
        return item

    def copy_payload(self, item: Item) -> Item:
        """Carry what another item carries."""
        self.meta, self.size_bytes, self.tensors = item.meta, item.size_bytes, item.tensors
        self.packed, self.packet, self.offset = item.packed, item.packet, item.offset
        return self


def encode(items: Sequence[Item], notes: Sequence[Note] = (), *, now: float) -> tuple[bytearray, list[Tensor]]:
    """Pack items and notes; return the packet and the large tensors that follow it.

    ``now``: of the clock that the deadlines are by.
    """
    parts: list[bytes | memoryview] = [HEAD.pack(VERSION, len(items) + len(notes))]
    bodies: list[bytes | memoryview] = []
    large: list[Tensor] = []
    for item in items:
        context = b"" if item.context is EMPTY else encode_context(item.context)
        parts += (_record(item, len(context), now), item.meta, context)
        if item.size_bytes > INLINE_BYTES:
            large += item.tensors
        else:
            _append_body(bodies, item)
    for note in notes:
        parts.append(RECORD.pack(note.kind, 0, 0, 0, 0, 0, 0, len(note.ids), note.number, b""))
        parts += note.ids
    size = sum(map(len, parts))
    return bytearray().join((*parts, _PADDING[: -size % ALIGNMENT], *bodies)), large


def as_tensors(packed: bytearray, large: list[Tensor]) -> Payload:
    """Return what ``encode`` gave as it is sent where bytes alone cannot be."""
    first = torch.frombuffer(packed, dtype=torch.uint8)
    return [first, *large] if large else first


def _record(item: Item, context_bytes: int, now: float) -> bytes:
    return RECORD.pack(
        item.kind,
        REPLAYED if item.replayed else 0,
        item.attempt,
        item.deaths,
        item.origin,
        len(item.meta),
        context_bytes,
        item.size_bytes,
        item.deadline - now,
        item.id,
    )


def _append_body(bodies: list[bytes | memoryview], item: Item) -> None:
    if item.packed is not None:
        _append_part(bodies, item.packed.memory)
    elif item.packet is not None:
        _append_part(bodies, item.packet.memory[item.offset : item.offset + item.size_bytes])
    else:
        for tensor in item.tensors:
            _append_part(bodies, memory_of(tensor))


def _append_part(bodies: list[bytes | memoryview], part: bytes | memoryview) -> None:
    bodies.append(part)
    if len(part) % ALIGNMENT:
        bodies.append(_PADDING[: -len(part) % ALIGNMENT])


def decode(received: Received, *, now: float) -> tuple[list[Item], list[Note]]:
    """Unpack; raises ProtocolError for what is no packet. The items keep what they came in."""
    try:
        if isinstance(received, SmallMessage):
            return _decode(_Packet(received, None), [], now)
        tensors = received if isinstance(received, list) else [received] if isinstance(received, Tensor) else []
        if not tensors or tensors[0].dtype != torch.uint8 or tensors[0].dim() != 1:
            raise ProtocolError("expected a packet of a serving edge, got other tensors")
        return _decode(_Packet(None, tensors[0]), tensors[1:], now)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"bad packet of a serving edge: {error}") from error


def _decode(packet: _Packet, large: list[Tensor], now: float) -> tuple[list[Item], list[Note]]:
    memory = packet.memory
    packet_bytes = len(memory)
    version, num_records = HEAD.unpack_from(memory)
    if version != VERSION:
        raise ProtocolError(f"packet of version {version}, expected {VERSION}")
    items: list[Item] = []
    notes: list[Note] = []
    position, record_bytes = HEAD.size, RECORD.size
    for _ in range(num_records):
        kind, flags, attempt, deaths, origin, meta, context, size, budget, id_ = RECORD.unpack_from(memory, position)
        position += record_bytes
        if kind > Kind.ERROR:
            end = position + size * ID_BYTES
            if end > packet_bytes:
                raise ProtocolError(f"a packet of {packet_bytes} bytes that should have {end}")
            notes.append(
                Note(kind, [bytes(memory[at : at + ID_BYTES]) for at in range(position, end, ID_BYTES)], budget)
            )
            position = end
            continue
        item = Item(kind, id_, origin, now + budget)
        item.attempt, item.deaths, item.replayed, item.size_bytes = attempt, deaths, bool(flags & REPLAYED), size
        item.meta = bytes(memory[position : position + meta])
        position += meta
        if context:
            item.context = decode_context(bytes(memory[position : position + context]))
            position += context
        items.append(item)
    packet.is_single = len(items) == 1
    _attach(items, packet, position + -position % ALIGNMENT, large)
    return items, notes


def _attach(items: list[Item], packet: _Packet, offset: int, large: list[Tensor]) -> None:
    taken, packet_bytes = 0, len(packet.memory)
    if packet_bytes % ALIGNMENT:
        raise ProtocolError(f"a packet of {packet_bytes} bytes, which is no multiple of {ALIGNMENT}")
    for item in items:
        if item.size_bytes > INLINE_BYTES:
            num_tensors = len(parse_layout(item.meta, item.size_bytes).dtypes)
            item.tensors = large[taken : taken + num_tensors]
            taken += num_tensors
            continue
        end = offset + item.size_bytes
        if end > packet_bytes:
            raise ProtocolError(f"a packet of {packet_bytes} bytes that should have {end}")
        item.packet, item.offset = packet, offset
        offset = end + -end % ALIGNMENT
    if taken != len(large):
        raise ProtocolError(f"{len(large)} large tensors came with a packet that names {taken}")

"""What the two ends of a message stream say to each other, and what each keeps of a message while it is under way."""

from __future__ import annotations

import struct
import threading
from typing import Final

from torch import Tensor

from ...wire.connection.frames import Header, Kind
from ...wire.progress.operation import Operation
from ..payload.small_message import SmallMessage
from ..payload.tensors import memory_of, parse_layout
from ..shared_memory.ring import Piece

USER: Final = 0  # two spaces of tags
COLLECTIVE: Final = 1
FLAG_COLLECTIVE: Final = 1
FLAG_CREDITED: Final = 2
FLAG_ASKED: Final = 8
SIZE: Final = struct.Struct("<Q")
MESSAGE: Final = int(Kind.MESSAGE)
PAYLOAD_KINDS: Final = frozenset((int(Kind.MESSAGE), int(Kind.PAYLOAD)))


class Message:
    """What came: its description, and the buffer that it waits in if no receive was there.

    ``small_message``: in the buffer's place, of one that came as bytes.
    """

    __slots__ = ("buffer", "meta", "piece", "size_bytes", "small_message", "space")

    def __init__(self, meta: bytes, size_bytes: int, space: int) -> None:
        self.meta, self.size_bytes, self.space = meta, size_bytes, space
        self.buffer: Tensor | None = None
        self.small_message: SmallMessage | None = None
        self.piece: Piece | None = None  # of the peer's ring, that it lies in (a ``SharedStream``)


class Taken:
    """What a receive had taken of its message when it was cancelled: it goes on into a buffer, and is copied there.

    The copy may outlast the stream, so both memories are held here.
    """

    __slots__ = ("_held", "copied", "seq", "source", "target", "turn")

    def __init__(self, seq: int, buffer: Tensor, tensor: Tensor, num_bytes: int) -> None:
        self.seq = seq
        self.target, self.source = memory_of(buffer)[:num_bytes], memory_of(tensor)[:num_bytes]
        self._held = buffer, tensor
        self.turn = threading.Lock()  # for ever of the first of those who cancel at once
        self.copied = threading.Event()


class Receive:
    """A receive that the caller waits for. ``tensor`` None: any payload.

    ``source`` is the rank that a receive from any rank has got its message from, and then its result. ``takes_bytes``:
    what is bytes alone need not become a tensor.
    """

    __slots__ = ("meta", "operation", "source", "space", "taken", "takes_bytes", "tensor", "view")

    def __init__(self, operation: Operation[object], space: int, meta: bytes | None, tensor: Tensor | None) -> None:
        self.operation, self.space, self.meta, self.tensor = operation, space, meta, tensor
        self.view = None if tensor is None else memory_of(tensor)
        self.taken: Taken | None = None
        self.source: int | None = None
        self.takes_bytes = False


class Send:
    """A message that the caller waits to have sent; it keeps the memory of the segments alive."""

    __slots__ = ("meta", "operation", "segments", "seq", "size_bytes", "space", "tag", "tensors")

    def __init__(self, space: int, tag: int, meta: bytes, segments: list[memoryview], tensors: list[Tensor]) -> None:
        self.space, self.tag, self.meta, self.segments, self.tensors = space, tag, meta, segments, tensors
        self.size_bytes = sum(map(len, segments))
        self.seq = 0
        self.operation: Operation[None] = Operation()


def key_of(space: int, tag: int) -> int:
    return tag << 1 | space


def is_eager(header: Header) -> bool:
    """Whether a frame brings a message of which nothing was said before, within the window."""
    return header.kind == MESSAGE and not header.flags & FLAG_CREDITED


def check_form(message: Message) -> None:
    """Raise ProtocolError for what could not be rebuilt."""
    if message.space == USER:
        parse_layout(message.meta, message.size_bytes)

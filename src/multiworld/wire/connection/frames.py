"""Parse and build frames. Pure: bytes in, frames out; no socket, clock or tensor.

A frame is a 32-byte header, ``meta`` (a few bytes that describe it) and a payload (tensor bytes, often none)::

    0      2      3       4          8             16      24      32
    | 'MW' | kind | flags | meta len | payload len | tag   | seq   | meta … | payload … |
    | u16  | u8   | u8    | u32      | u64         | i64   | u64   |

All integers are little-endian. What ``tag`` and ``seq`` mean is the kind's own business.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from ...errors import ProtocolError

MAGIC: Final = 0x574D  # "MW" on the wire
MAGIC_BYTES: Final = MAGIC.to_bytes(2, "little")
HEADER: Final = struct.Struct("<HBBIQqQ")
HEADER_BYTES: Final = HEADER.size
DIRECT_BYTES: Final = 16 * 1024  # a payload rest of this size is worth a read straight into its destination
MAX_PAYLOAD_BYTES: Final = 1 << 46


class Kind(enum.IntEnum):
    """What a frame is. The hundreds group by who speaks: the handshake, the store, a link, a data connection,
    a worker and its agent. ``CONTROL`` holds a message of a control link, or of one agent to another.
    """

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    REFUSED = 4
    ACCEPTED = 5
    STORE_REQUEST = 20
    STORE_REPLY = 21
    HEARTBEAT = 40
    READY = 41
    REVOKE = 42
    LEFT = 43
    GOODBYE = 44
    SENTINEL = 45
    MESSAGE = 60
    ANNOUNCE = 61
    PAYLOAD = 62
    CREDIT = 63
    WINDOW = 64
    WITHDRAW = 65
    REJECT = 66
    BYE = 67
    MOVED = 68
    RECALL = 69
    RETURNED = 70
    SHARE = 71
    SHARED = 72
    RELEASE = 74
    UNUSED = 75
    MAPPED = 76
    MORE = 77
    ROOM = 78
    SLOTS = 79
    WORKER_NEWS = 90
    WORKER_PLACE = 91
    CONTROL = 95


KINDS: Final = frozenset(int(kind) for kind in Kind)


class Header(NamedTuple):
    kind: int
    flags: int
    meta_bytes: int
    payload_bytes: int
    tag: int
    seq: int


def pack_header(
    kind: int, *, flags: int = 0, meta_bytes: int = 0, payload_bytes: int = 0, tag: int = 0, seq: int = 0
) -> bytes:
    return HEADER.pack(MAGIC, kind, flags, meta_bytes, payload_bytes, tag, seq)


def pack_frame(kind: int, meta: bytes = b"", *, flags: int = 0, tag: int = 0, seq: int = 0) -> bytes:
    """Return a whole frame without payload."""
    return HEADER.pack(MAGIC, kind, flags, len(meta), 0, tag, seq) + meta


class FrameSink(Protocol):
    """What receives the frames of a parser, in the order of the stream."""

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        """A header came. Return where its payload goes (exactly ``payload_bytes`` long), or None to drop it."""

    def end(self, header: Header, meta: bytes) -> None:
        """The frame is complete. Frames without payload get ``begin`` and ``end`` too."""


class FrameParser:
    """Cuts a byte stream into frames, however it arrives; large payloads can be read straight into place.

    Feed it with ``feed``; or, while ``direct`` is not None, read into that view and call ``advance``. Anything that is
    not ours raises ProtocolError: the caller closes the connection.
    """

    def __init__(self, sink: FrameSink, *, max_meta_bytes: int, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self.sink = sink
        self.max_meta_bytes = max_meta_bytes
        self.max_payload_bytes = max_payload_bytes
        self.take_whole: Callable[[Header, bytes, memoryview], bool] | None = None
        """Offered each frame that came with all of its payload at once; False: the sink gets it."""
        self._partial = bytearray()  # header and meta bytes of the frame that is still incomplete
        self._header: Header | None = None  # set while its payload comes in
        self._meta = b""
        self._target: memoryview | None = None
        self._received = 0

    @property
    def in_payload(self) -> Header | None:
        return self._header

    @property
    def received_bytes(self) -> int:
        """How much of the payload of ``in_payload`` has come."""
        return self._received

    @property
    def missing_bytes(self) -> int:
        """How much of the header and meta of the next frame is known to be missing."""
        missing = HEADER_BYTES - len(self._partial)
        return missing if missing > 0 else missing + Header(*HEADER.unpack_from(self._partial)[1:]).meta_bytes

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without losing part of a frame."""
        return self._header is None and not self._partial

    @property
    def direct_bytes(self) -> int:
        """How much of the present payload is still to be read into its destination; 0: nothing of any."""
        return 0 if self._header is None or self._target is None else self._header.payload_bytes - self._received

    def direct(self) -> memoryview | None:
        """Return the rest of the destination that should be read into directly, or None."""
        if self._header is None or self._target is None:
            return None
        if self._header.payload_bytes - self._received < DIRECT_BYTES:
            return None
        return self._target[self._received :]

    def advance(self, num_bytes: int) -> None:
        """Count bytes that were read into ``direct()``."""
        assert self._header is not None
        self._received += num_bytes
        if self._received == self._header.payload_bytes:
            self._finish()

    def redirect(self, target: memoryview | None) -> None:
        """Change where the rest of the present payload goes (None drops it)."""
        assert self._header is not None
        self._target = target

    def feed(self, data: memoryview) -> None:
        position, end = 0, len(data)
        while position < end:
            if self._header is not None:
                position += self._take_payload(data[position:])
            elif self._partial:
                position += self._complete_partial(data[position:])
            else:
                position = self._take_frames(data, position, end)

    def _take_frames(self, data: memoryview, position: int, end: int) -> int:
        """Parse headers in place while they are whole; keep a rest that is not."""
        while end - position >= HEADER_BYTES:
            header = self._check(HEADER.unpack_from(data, position))
            start = position + HEADER_BYTES
            stop = start + header.meta_bytes
            if stop > end:
                break
            meta = bytes(data[start:stop])
            position = stop + header.payload_bytes
            is_whole = stop < position <= end
            if is_whole and self.take_whole is not None and self.take_whole(header, meta, data[stop:position]):
                continue
            self._start(header, meta)
            if header.payload_bytes:
                return stop
        self._partial += data[position:end]
        if not MAGIC_BYTES.startswith(self._partial[:2]):  # a short word of another protocol: no more may come
            raise _no_frame(int.from_bytes(self._partial[:2], "little"))
        return end

    def _complete_partial(self, data: memoryview) -> int:
        """Take what the incomplete header and meta still miss; return how much was taken."""
        missing = HEADER_BYTES - len(self._partial)
        if missing > 0:
            self._partial += data[:missing]
            if len(self._partial) == HEADER_BYTES:
                header = self._check(HEADER.unpack_from(self._partial))
                if not header.meta_bytes:
                    self._partial = bytearray()
                    self._start(header, b"")
            return min(missing, len(data))
        header = Header(*HEADER.unpack_from(self._partial)[1:])
        missing = HEADER_BYTES + header.meta_bytes - len(self._partial)
        self._partial += data[:missing]
        if len(data) >= missing:
            meta = bytes(self._partial[HEADER_BYTES:])
            self._partial = bytearray()
            self._start(header, meta)
        return min(missing, len(data))

    def _check(self, fields: tuple[int, ...]) -> Header:
        if fields[0] != MAGIC:
            raise _no_frame(fields[0])
        header = tuple.__new__(Header, fields[1:])  # its own constructor takes twice as long
        if header.kind not in KINDS:
            raise ProtocolError(f"unknown frame kind {header.kind}")
        if header.meta_bytes > self.max_meta_bytes:
            raise ProtocolError(
                f"oversized header: {header.meta_bytes} bytes of meta, at most {self.max_meta_bytes} are allowed"
            )
        if header.payload_bytes > self.max_payload_bytes:
            raise ProtocolError(
                f"oversized payload: {header.payload_bytes} bytes, at most {self.max_payload_bytes} are allowed"
            )
        return header

    def _start(self, header: Header, meta: bytes) -> None:
        target = self.sink.begin(header, meta)
        if not header.payload_bytes:
            self.sink.end(header, meta)
            return
        assert target is None or len(target) == header.payload_bytes
        self._header, self._meta, self._target, self._received = header, meta, target, 0

    def _take_payload(self, data: memoryview) -> int:
        assert self._header is not None
        taken = min(len(data), self._header.payload_bytes - self._received)
        if self._target is not None:
            self._target[self._received : self._received + taken] = data[:taken]
        self._received += taken
        if self._received == self._header.payload_bytes:
            self._finish()
        return taken

    def _finish(self) -> None:
        assert self._header is not None
        header, meta = self._header, self._meta
        self._header, self._target, self._meta = None, None, b""
        self.sink.end(header, meta)


def _no_frame(start: int) -> ProtocolError:
    return ProtocolError(f"not a multiworld frame: it starts with {start:#06x} instead of {MAGIC:#06x}")

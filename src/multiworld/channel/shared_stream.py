"""A message stream between two processes of one host: payloads go through memory that both map.

The connection, a Unix socket, carries all headers, small payloads, and everything for as long as there is no shared
memory. Our memory (``host_memory``) is offered when the first larger payload comes. Once the peer has answered that it
mapped it, payloads go through the ring in it, in pieces. A piece is announced by a frame that says where it lies, and
released by one that counts, so whoever reads the socket moves the data, and nobody spins on memory.

A payload is out of the caller's tensor once its last piece is written, and out of the ring once the peer has read it,
into the tensor that was posted for it or a buffer. So a dead or slow peer holds nothing but the ring.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import deque
from functools import partial

from torch import Tensor

from ..errors import ProtocolError
from ..wire.connection import Connection
from ..wire.copying import copied
from ..wire.frames import Header, Kind, pack_header
from .host_memory import FORGET_S, RING_BYTES, HostMemory
from .matching import Arrival, Outbox
from .ring import Piece, RingReads, RingSpace
from .shared_region import SharedRegion
from .stream import (
    COLLECTIVE,
    EAGER_BYTES,
    FLAG_COLLECTIVE,
    FLAG_CREDITED,
    USER,
    Message,
    MessageStream,
    Receive,
    Send,
    StreamOwner,
    key_of,
)
from .tensors import memory_of, parse_layout

__all__ = ["SharedStream"]

logger = logging.getLogger(__name__)

FLAG_SHARED = 16
PIECE_BYTES = RING_BYTES // 8
INLINE_BYTES = 16 * 1024  # up to here a copy through the socket costs less than the ring's frames
FILL_BYTES = 1024 * 1024  # what a sending thread copies itself before the progress thread takes over
REPORT_BYTES = RING_BYTES // 8  # what is read before the sender hears of it
SHARED_EAGER_BYTES = 64 * 1024  # beyond, to wait for a credit costs less than to keep what nobody waits for yet
KEPT_BYTES = RING_BYTES // 2  # what may wait in the ring for its receive while other receives wait
ROOM_S = 0.005  # or if nobody has received anything for so long
REPORT_S = 0.1  # or so long after it was read
PLACE = struct.Struct("<QQI")  # size of the payload; offset and size of its first piece, 0 if none is there yet


class _Outgoing:
    """A payload that is being written into the ring."""

    __slots__ = ("segments", "send", "seq")

    def __init__(self, send: Send) -> None:
        self.send: Send | None = send  # None: it was cancelled, and goes on from a copy
        self.seq = send.seq
        self.segments = deque(segment for segment in send.segments if len(segment))


class _Incoming:
    """A payload that is being read out of the peer's ring; ``target`` None drops it."""

    __slots__ = ("received", "size_bytes", "target")

    def __init__(self, size_bytes: int, target: memoryview | None) -> None:
        self.size_bytes, self.target, self.received = size_bytes, target, 0


class SharedStream(MessageStream):
    """One peer's messages in both directions."""

    def __init__(self, owner: StreamOwner, rank: int, memory: HostMemory) -> None:
        super().__init__(owner, rank, eager_bytes=SHARED_EAGER_BYTES)
        self._memory = memory
        memory.add(rank, self)
        self._ring_offset = memory.ring_offset(memory.rank, rank)
        self._peer_ring_offset = memory.ring_offset(rank, memory.rank)
        # What we send; guarded by the issue lock.
        self._ring: SharedRegion | None = None  # our memory, once the peer has mapped it
        self._refused = False
        self._space = RingSpace(RING_BYTES)
        self._outgoing: deque[_Outgoing] = deque()
        self._num_written = 0
        self._forget_timer = False
        # What comes; guarded by the connection's read side.
        self._peer_ring: SharedRegion | None = None
        self._incoming: dict[int, _Incoming] = {}
        self._reads = RingReads()
        self._waiting: dict[Piece, Message] = {}  # whole messages that wait in the ring
        self._report_timer = self._room_timer = False
        self._num_taken = 0

    def opened(self, connection: Connection) -> None:
        if connection.is_local:
            connection.takes_descriptors = True
        else:  # the same as a stream of the tcp channel, on both sides
            self._eager_bytes = EAGER_BYTES
            self._outbox = Outbox(eager_bytes=EAGER_BYTES)
        super().opened(connection)

    # ---- sending

    def _send_at_once(self, space: int, tag: int, meta: bytes, segment: memoryview) -> bool:
        size = len(segment)
        if size <= INLINE_BYTES or size > SHARED_EAGER_BYTES or self._ring is None:
            return super()._send_at_once(space, tag, meta, segment)
        with self._issue_lock:
            connection, ring = self.connection, self._ring
            if ring is None or self._outgoing or connection.num_queued or not self._outbox.allows_eager(size):
                return False
            offset = self._space.take(size)
            if offset is None:
                return False
            try:
                seq = self._outbox.issue_eager(size)
                assert seq is not None
                ring.write(self._ring_offset + offset, segment)
                meta_bytes = PLACE.size + len(meta)
                header = pack_header(Kind.MESSAGE, flags=space | FLAG_SHARED, meta_bytes=meta_bytes, tag=tag, seq=seq)
                frame = b"".join((header, PLACE.pack(size, offset, size), meta))
                self._written()
                if not connection.send_now(frame):
                    connection.queue(frame)
            except BaseException:  # an interrupt: it has a number that the peer was perhaps not told of
                connection.abort("interrupted while sending")
                raise
        connection.flush()
        self.messages_sent += 1
        self.bytes_sent += size
        return True

    def say_unused(self, num_uses: int) -> None:
        self.connection.send(pack_header(Kind.UNUSED, seq=num_uses))

    # The rest of sending has the issue lock held.

    def _queue_message(self, send: Send, flags: int) -> None:
        if self._goes_through_ring(send.size_bytes):
            self._queue_shared(Kind.MESSAGE, send, flags, send.meta)
        else:
            super()._queue_message(send, flags)

    def _queue_payload(self, send: Send, flags: int) -> None:
        if self._goes_through_ring(send.size_bytes):
            self._queue_shared(Kind.PAYLOAD, send, flags, b"")
        else:
            super()._queue_payload(send, flags)

    def _goes_through_ring(self, size_bytes: int) -> bool:
        return size_bytes > INLINE_BYTES and (self._ring is not None or self._get_ready())

    def _get_ready(self) -> bool:
        """Whether the peer has mapped our memory; it is offered if it was not."""
        if self._refused:
            return False
        self._memory.offer()
        ready = self._memory.ready(self.rank)
        if ready and self._error is None:
            self._ring = self._memory.own
        self._refused = ready is False
        return self._ring is not None

    def can_lend(self) -> bool:
        return self._connection is not None and self._connection.is_local

    def lend(self, descriptor: int) -> None:
        self.connection.queue_descriptor(pack_header(Kind.SHARE), descriptor, on_sent=partial(os.close, descriptor))
        self.connection.flush()

    def _queue_shared(self, kind: Kind, send: Send, flags: int, meta: bytes) -> None:
        """Queue the header with the first piece of the payload, if there is room for it."""
        outgoing = _Outgoing(send)
        offset = size = 0
        if not self._outgoing:
            offset, size = self._write_piece(outgoing) or (0, 0)
        meta = PLACE.pack(send.size_bytes, offset, size) + meta
        header = pack_header(
            kind, flags=flags | send.space | FLAG_SHARED, meta_bytes=len(meta), tag=send.tag, seq=send.seq
        )
        if outgoing.segments:
            self.connection.queue(header + meta)
            self._outgoing.append(outgoing)
            self._write_pieces(FILL_BYTES - size)
        else:
            self.connection.queue(header + meta, on_sent=partial(self._sent, send))

    def _write_piece(self, outgoing: _Outgoing) -> tuple[int, int] | None:
        """Write what comes next of a payload into the ring. Return where it lies; None: no room."""
        assert self._ring is not None
        segments = outgoing.segments
        size = min(sum(map(len, segments)), PIECE_BYTES) if len(segments) > 1 else min(len(segments[0]), PIECE_BYTES)
        offset = self._space.take(size)
        if offset is None:
            return None
        position, end = offset, offset + size
        while position < end:
            segment = segments.popleft()
            room = end - position
            if len(segment) > room:
                segments.appendleft(segment[room:])
                segment = segment[:room]
            self._ring.write(self._ring_offset + position, segment)
            position += len(segment)
        self._written()
        return offset, size

    def _written(self) -> None:
        self._num_written += 1
        if not self._forget_timer:
            self._forget_timer = True
            self.connection.loop.call_later(FORGET_S, partial(self._forget_later, self._num_written))

    def _write_pieces(self, budget: int) -> None:
        """Write pieces of what waits, while there is room; the progress thread goes on after ``budget`` bytes."""
        while self._outgoing:
            if budget <= 0:
                self.connection.loop.call_soon(partial(self._go_on, 0))
                return
            outgoing = self._outgoing[0]
            piece = self._write_piece(outgoing)
            if piece is None:
                return
            offset, size = piece
            budget -= size
            frame = pack_header(Kind.PIECE, tag=offset << 32 | size, seq=outgoing.seq)
            if outgoing.segments:
                self.connection.queue(frame)
                continue
            self._outgoing.popleft()
            on_sent = None if outgoing.send is None else partial(self._sent, outgoing.send)
            self.connection.queue(frame, on_sent=on_sent)

    def _go_on(self, num_released: int) -> None:
        """The peer has read so many pieces. The read side is free."""
        with self._issue_lock:
            if self._ring is None:
                return
            if not self._space.release(num_released):
                self.connection.abort(f"{num_released} pieces were released, but fewer were in use")
                return
            self._write_pieces(FILL_BYTES)
        self.connection.flush()

    def _forget_later(self, num_written: int) -> None:
        """On the progress thread, while the ring is used now and then: is it still?"""
        with self._issue_lock:
            if self._ring is None:
                return
            self._forget_timer = self._num_written != num_written or self._space.num_pieces > 0
            if self._forget_timer:
                self.connection.loop.call_later(FORGET_S, partial(self._forget_later, self._num_written))
            else:
                self._ring.forget(self._ring_offset, RING_BYTES)

    def _cancel_send(self, send: Send) -> None:
        super()._cancel_send(send)
        with self._issue_lock:
            for outgoing in self._outgoing:
                if outgoing.send is send:
                    outgoing.send = None
                    outgoing.segments = deque(map(copied, outgoing.segments))

    # ---- receiving: with the read side held

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if not header.flags & FLAG_SHARED or header.kind not in (Kind.MESSAGE, Kind.PAYLOAD):
            return super().begin(header, meta)
        if len(meta) < PLACE.size or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} says that it lies in shared memory, but not where")
        size_bytes, offset, piece_bytes = PLACE.unpack_from(meta)
        arrival = self._arrival(header, meta[PLACE.size :], size_bytes)
        if piece_bytes == size_bytes and arrival.posted is None and not arrival.dropped:
            self._keep(arrival, offset)
            return None
        target = None if arrival.dropped else self._destination(arrival)
        self._incoming[header.seq] = _Incoming(size_bytes, target)
        self.connection.beside_bytes = size_bytes
        if piece_bytes:
            self._read_piece(header.seq, offset, piece_bytes)
        return None

    def _keep(self, arrival: Arrival[Receive, Message], offset: int) -> None:
        """Nobody waits for this message, which lies in the ring whole: let it lie there for a while."""
        self._check_piece(offset, arrival.size_bytes)
        message = arrival.message
        if message.space == USER:
            parse_layout(message.meta, message.size_bytes)  # as in ``_destination``
        message.piece = self._reads.keep(offset, arrival.size_bytes)
        self._waiting[message.piece] = message
        self._complete(arrival.seq)
        if self._reads.kept_bytes > KEPT_BYTES:
            self._make_room()

    def _make_room(self) -> None:
        """Much waits in the ring, in the way of what comes behind it. Take it out if that may be what is waited for.

        If nothing is, a moment later: whoever receives one message after the other gets them straight from the ring.
        """
        if self._inbox.has_receives:
            self._empty()
        elif not self._room_timer:
            self._room_timer = True
            self.connection.loop.call_later(ROOM_S, partial(self._check_room, self._num_taken))

    def _check_room(self, num_taken: int) -> None:
        self.connection.run(partial(self._make_room_late, num_taken))

    def _make_room_late(self, num_taken: int) -> None:
        self._room_timer = False
        if self._reads.kept_bytes > KEPT_BYTES:
            if num_taken == self._num_taken:
                self._empty()
            else:
                self._make_room()

    def _empty(self) -> None:
        for message in list(self._waiting.values()):
            self._take_out(message)

    def _post(self, receive: Receive, key: int) -> None:
        super()._post(receive, key)
        if self._reads.kept_bytes > KEPT_BYTES:
            self._make_room()

    def _take_out(self, message: Message, target: memoryview | None = None) -> None:
        """Read a message that lies in the ring: into a buffer if nobody has given any memory."""
        piece, ring = message.piece, self._peer_ring
        assert piece is not None
        assert ring is not None
        if target is None:
            message.buffer = self._allocate(message.size_bytes)
            target = memory_of(message.buffer)
        ring.read(self._peer_ring_offset + piece.offset, target)
        message.piece = None
        del self._waiting[piece]
        self._num_taken += 1
        self._reads.done(piece)
        self._report_soon()

    def _forget(self, tag: int) -> None:
        for message in self._inbox.arrived(key_of(COLLECTIVE, tag)):
            if message.piece is not None:
                del self._waiting[message.piece]
                self._reads.done(message.piece)
        self._report_soon()
        super()._forget(tag)

    def _hand_out(self, message: Message, tensor: Tensor) -> None:
        if message.piece is not None:
            self._take_out(message, memory_of(tensor))
        else:
            super()._hand_out(message, tensor)

    def _buffer_of(self, message: Message) -> Tensor:
        if message.piece is not None:
            self._take_out(message)
        return super()._buffer_of(message)

    def _arrival(self, header: Header, meta: bytes, size_bytes: int) -> Arrival[Receive, Message]:
        eager = not header.flags & FLAG_CREDITED
        if header.kind == Kind.MESSAGE:
            space = header.flags & FLAG_COLLECTIVE
            message = Message(meta, size_bytes, space)
            key = key_of(space, header.tag)
            return self._arrive(key, header.seq, message, size_bytes, eager=eager, transferring=True)
        arrival = self._inbox.begin(header.seq, eager=eager)
        if arrival is None or arrival.size_bytes != size_bytes:
            raise ProtocolError(f"payload of message {header.seq}, which was not announced so")
        return arrival

    def end(self, header: Header, meta: bytes) -> None:
        if header.kind == Kind.PIECE:
            self._read_piece(header.seq, header.tag >> 32, header.tag & 0xFFFFFFFF)
            self._act()
        elif header.kind == Kind.RELEASE:
            self.connection.defer(partial(self._go_on, header.seq))
        elif header.kind == Kind.SHARE:
            self._map_peer_memory()
        elif header.kind == Kind.UNUSED:
            self.connection.defer(partial(self._memory.unused_by, self.rank, header.seq))
        elif header.kind == Kind.SHARED:
            self.connection.defer(partial(self._memory.answered, self.rank, meta.decode(errors="replace")))
        elif header.flags & FLAG_SHARED:
            self._act()
        else:
            super().end(header, meta)

    def _map_peer_memory(self) -> None:
        text = self._memory.lent(self.rank, self.connection.take_descriptor()).encode()
        self._peer_ring = self._memory.theirs.get(self.rank)
        self.connection.takes_descriptors = False
        self.connection.queue(pack_header(Kind.SHARED, meta_bytes=len(text)) + text)
        self.connection.defer(self.connection.flush)

    def _read_piece(self, seq: int, offset: int, size: int) -> None:
        incoming, ring = self._incoming.get(seq), self._peer_ring
        if incoming is None or ring is None:
            raise ProtocolError(f"a piece of message {seq}, which does not come through shared memory")
        self._check_piece(offset, size)
        end = incoming.received + size
        if end > incoming.size_bytes:
            raise ProtocolError(
                f"a piece of {size} bytes, where {incoming.received} of {incoming.size_bytes} have come"
            )
        if incoming.target is not None:
            ring.read(self._peer_ring_offset + offset, incoming.target[incoming.received : end])
        incoming.received = end
        self._reads.read(size)
        if self._reads.kept_bytes > KEPT_BYTES:  # it was read, but not released behind one that waits
            self._make_room()
        self._report_soon()
        if end == incoming.size_bytes:
            del self._incoming[seq]
            self.connection.beside_bytes = 0
            self._all_came(seq)

    def _check_piece(self, offset: int, size: int) -> None:
        if not 0 < size <= PIECE_BYTES or offset + size > RING_BYTES or self._peer_ring is None:
            raise ProtocolError(f"a piece of {size} bytes at {offset} of the shared memory")

    def _report_soon(self) -> None:
        if self._reads.released_bytes >= REPORT_BYTES:
            self._report()
        elif self._reads.num_released and not self._report_timer:
            self._report_timer = True
            self.connection.loop.call_later(REPORT_S, self._report_late)

    def _report(self) -> None:
        self.connection.queue(pack_header(Kind.RELEASE, seq=self._reads.take_released()))
        self.connection.defer(self.connection.flush)

    def _report_late(self) -> None:
        self.connection.run(self._report_rest)

    def _report_rest(self) -> None:
        self._report_timer = False
        if self._reads.num_released:
            self._report()

    def _redirect(self, seq: int, target: memoryview) -> int:
        incoming = self._incoming.get(seq)
        if incoming is None:
            return super()._redirect(seq, target)
        incoming.target = target
        return incoming.received

    # ---- the end

    def _fail_all(self, error: Exception) -> None:
        with self._issue_lock:
            self._outgoing.clear()
            self._ring, self._refused = None, True
        self._incoming.clear()
        if self._kept:
            self._empty()
        self._waiting.clear()
        self._peer_ring = None
        super()._fail_all(error)

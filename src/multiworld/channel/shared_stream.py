"""A message stream between two processes of one host: payloads go through memory that both map.

The connection, a Unix socket, carries all headers, small payloads, and everything for as long as there is no shared
memory. Our memory (``host_memory``) is offered when the first larger payload comes. Once the peer has answered that it
mapped it, a payload of moderate size goes whole into the ring in it, where it may wait for its receive, and its frame
says where it lies. A large one, whose receive waits, goes through the lane: its frame says that it comes.

A payload is out of the caller's tensor once it is in the memory, and out of that once the peer has read it, into the
tensor that was posted for it or a buffer. So a dead or slow peer holds nothing but our memory.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ..errors import ProtocolError
from ..wire.connection import Connection
from ..wire.copying import copied
from ..wire.frames import MAX_PAYLOAD_BYTES, Header, Kind, pack_header
from ..wire.operation import Operation, settler
from ..wire.progress import weakly
from ..wire.waiting import is_blocked_here, running_loop
from .host_memory import FORGET_S, RING_BYTES, HostMemory
from .lane import WINDOW_BYTES, open_reader, open_writer
from .lane import WORKS as LANES_WORK
from .lane_payloads import LaneReads, LaneWrites, Payload
from .matching import Outbox
from .ring import Piece, RingReads, RingSpace
from .shared_region import SharedRegion
from .stream import (
    COLLECTIVE,
    EAGER_BYTES,
    FLAG_COLLECTIVE,
    MESSAGE,
    PAYLOAD_KINDS,
    USER,
    Message,
    MessageStream,
    Receive,
    Send,
    StreamOwner,
    check_form,
    is_eager,
    key_of,
)
from .tensors import memory_of

__all__ = ["SharedStream"]

logger = logging.getLogger(__name__)

FLAG_SHARED, FLAG_LANE = 16, 32
NO_LANES = 1  # of an answer to memory
INLINE_BYTES = 16 * 1024  # up to here a copy through the socket costs less than the ring's frames
REPORT_BYTES = RING_BYTES // 8  # what is read before the sender hears of it
SHARED_EAGER_BYTES = RING_BYTES // 8  # what goes through the ring, where it can lie until it is received
KEPT_BYTES = RING_BYTES // 3  # what may wait in the ring for its receive while other receives wait
assert KEPT_BYTES + REPORT_BYTES <= RING_BYTES // 2, "see RingSpace"
ROOM_S = 0.005  # or if nobody has received anything for so long
REPORT_S = 0.1  # or so long after it was read
PLACE = struct.Struct("<QQ")  # where in the ring a payload lies, and its size
LENGTH = struct.Struct("<Q")


class _Outgoing(Payload[Send]):
    """A frame that goes out when its payload has room in the ring, or when those before it have gone.

    One whose payload goes into the ring has a ``head``; the others are ``frame`` and segments.
    """

    __slots__ = ("frame", "head")

    def __init__(self, send: Send | None, *, frame: bytes = b"", head: _Head | None = None) -> None:
        super().__init__(send, () if send is None else send.segments)
        self.frame, self.head = frame, head


class _Head(NamedTuple):
    """What the frame says of a payload, beside where it lies."""

    kind: int
    flags: int
    tag: int
    seq: int
    size_bytes: int
    meta: bytes

    def frame(self, offset: int) -> bytes:
        place = PLACE.pack(offset, self.size_bytes)
        return _frame(self.kind, self.flags | FLAG_SHARED, self.tag, self.seq, place, self.meta)

    def lane_frame(self) -> bytes:
        length = LENGTH.pack(self.size_bytes)
        return _frame(self.kind, self.flags | FLAG_LANE, self.tag, self.seq, length, self.meta)


def _frame(kind: int, flags: int, tag: int, seq: int, place: bytes, meta: bytes) -> bytes:
    header = pack_header(kind, flags=flags, meta_bytes=len(place) + len(meta), tag=tag, seq=seq)
    return b"".join((header, place, meta))


class SharedStream(MessageStream):
    """One peer's messages in both directions."""

    def __init__(self, owner: StreamOwner, rank: int, memory: HostMemory) -> None:
        super().__init__(owner, rank, eager_bytes=SHARED_EAGER_BYTES)
        self._memory = memory
        memory.add(rank, self)
        self._offsets = memory.offsets(memory.rank, rank)
        self._peer_offsets = memory.offsets(rank, memory.rank)
        # What we send; guarded by the issue lock.
        self._ring: SharedRegion | None = None  # our memory, once the peer has mapped it
        self._writes: LaneWrites[Send] | None = None  # the lane in it
        self._refused = self._has_offered = False
        self._peer_has_lanes = LANES_WORK
        self._space = RingSpace(RING_BYTES)
        self._held: deque[_Outgoing] = deque()
        self._all_gone: Operation[None] | None = None  # somebody waits until nothing is held
        self._num_written = 0
        self._forget_timer = False
        # What comes; guarded by the connection's read side.
        self._peer_ring: SharedRegion | None = None
        self._lane_reads: LaneReads | None = None
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

    def unsent(self) -> list[Operation[None]]:
        """What waits for room goes before BYE, also what nobody waits for: cancelled sends, and what was withdrawn."""
        unsent = super().unsent()  # first: what is cancelled from here on is held below
        with self._issue_lock:
            writes = self._writes
            waits = bool(self._held) or (writes is not None and bool(writes.waiting))
            if waits and self._all_gone is None and not self.connection.closed:
                self._all_gone = Operation()
            return unsent if self._all_gone is None else [*unsent, self._all_gone]

    def lost(self, reason: str) -> None:
        super().lost(reason)
        with self._issue_lock:
            self._drop_held()

    # ---- sending

    def _send_at_once(self, space: int, tag: int, meta: bytes, segment: memoryview) -> bool:
        size = len(segment)
        if size <= INLINE_BYTES or size > SHARED_EAGER_BYTES or self._ring is None:
            return super()._send_at_once(space, tag, meta, segment)
        with self._issue_lock:
            connection, ring = self.connection, self._ring
            if ring is None or connection.closed or self._held or connection.num_queued:
                return False
            if not self._outbox.allows_eager(size):
                return False
            offset = self._space.take(size)
            if offset is None:
                return False
            try:
                seq = self._outbox.issue_eager(size)
                assert seq is not None
                ring.write(self._offsets.ring + offset, segment)
                self._used()
                self._tell(_frame(MESSAGE, space | FLAG_SHARED, tag, seq, PLACE.pack(offset, size), meta))
            except BaseException:  # an interrupt: it has a number that the peer was perhaps not told of
                connection.abort("interrupted while sending")
                raise
        connection.flush()
        self.messages_sent += 1
        self.bytes_sent += size
        return True

    def say_mapped(self, *, by_all: bool) -> None:
        self.connection.send(pack_header(Kind.MAPPED, seq=by_all))

    def say_unused(self, seq: int) -> None:
        self.connection.send(pack_header(Kind.UNUSED, seq=seq))

    # The rest of sending has the issue lock held.

    def _queue_message(self, send: Send, flags: int) -> None:
        if not self._queue_in_memory(Kind.MESSAGE, send, flags, send.meta):
            super()._queue_message(send, flags)

    def _queue_payload(self, send: Send, flags: int) -> None:
        if not self._queue_in_memory(Kind.PAYLOAD, send, flags, b""):
            super()._queue_payload(send, flags)

    def _queue_in_memory(self, kind: Kind, send: Send, flags: int, meta: bytes) -> bool:
        """Queue a payload that goes through memory. False: it does not."""
        size_bytes = send.size_bytes
        if size_bytes <= INLINE_BYTES or not (self._ring is not None or self._get_ready()):
            return False
        head = _Head(kind, flags | send.space, send.tag, send.seq, size_bytes, meta)
        if size_bytes <= SHARED_EAGER_BYTES:
            self._hold(_Outgoing(send, head=head))
            if len(self._held) == 1:
                self._write_held()
            return True
        writes = self._writes
        if writes is None:
            return False
        frame = head.lane_frame()
        if self._num_unsaid:
            self._hold(_Outgoing(None, frame=frame))
        else:
            self._tell(frame)
        writes.waiting.append(Payload(send, send.segments))
        if len(writes.waiting) == 1:
            self._write_lane(writes)
        return True

    def _get_ready(self) -> bool:
        """Whether the peer has mapped our memory; it is offered soon if it was not."""
        if self._refused:
            return False
        if not self._has_offered:  # on the progress thread: an offer tells others, who may send something here
            self._has_offered = True
            self.connection.loop.call_soon(self._offer)
        ready = self._memory.ready(self.rank)
        if ready and self._error is None:
            self._ring = self._memory.own
            if self._ring is not None and self._peer_has_lanes:
                page, window = (self._ring.address + at for at in (self._offsets.page, self._offsets.window))
                self._writes = LaneWrites(
                    open_writer(page, window),
                    ring=self._ring_bell,
                    written=self._has_gone,
                    again=partial(self._again, self._room_came),
                    memory=self._ring,
                )
        self._refused = ready is False
        return self._ring is not None

    def _offer(self) -> None:
        self._memory.offer()

    def can_lend(self) -> bool:
        return self._connection is not None and self._connection.is_local

    def lend(self, descriptor: int) -> None:
        self.connection.queue_descriptor(pack_header(Kind.SHARE), descriptor, on_sent=partial(os.close, descriptor))
        self.connection.flush()

    def _queue(self, frame: bytes, send: Send | None = None) -> None:
        if self._num_unsaid:
            self._hold(_Outgoing(send, frame=frame))
        else:
            super()._queue(frame, send)

    def _hold(self, outgoing: _Outgoing) -> None:
        self._held.append(outgoing)
        self._num_unsaid += 1

    def _write_held(self) -> None:
        """Send what waits for room in the ring, while there is some."""
        while self._held and self._held[0].detached is None:
            outgoing = self._held[0]
            frame, segments, owner = outgoing.frame, outgoing.segments, outgoing.owner
            if outgoing.head is not None:
                offset = self._space.take(outgoing.head.size_bytes)
                if offset is None:
                    return
                self._write_ring(offset, segments)
                frame = outgoing.head.frame(offset)
                segments = deque()
            self._num_unsaid -= 1
            self._held.popleft()
            self.connection.queue(frame, *segments, on_sent=None if owner is None else partial(self._sent, owner))
        self._check_all_gone()

    def _write_ring(self, offset: int, segments: deque[memoryview]) -> None:
        assert self._ring is not None
        for segment in segments:
            self._ring.write(self._offsets.ring + offset, segment)
            offset += len(segment)
        self._used()

    def _write_lane(self, writes: LaneWrites[Send]) -> None:
        if self.connection.closed:  # perhaps amid a payload, of which nobody knows how much has gone
            return
        try:
            writes.write()
        except ProtocolError as error:
            writes.close()
            self.connection.abort(str(error))
        except BaseException as error:  # a defect, or an interrupt: as above
            writes.close()
            self.connection.abort(f"interrupted while sending: {error!r}")
            raise
        self._used()
        self._check_all_gone()

    def _again(self, move: Callable[[], None], rests: bool) -> None:
        """A turn is over. An asyncio loop goes on when its tasks have had theirs; if it is too busy, others do."""
        loop = None if is_blocked_here() else running_loop()
        if loop is not None:
            loop.call_soon(move)
        if not rests:
            self.connection.loop.call_soon(move)

    def _has_gone(self, send: Send | None) -> None:
        if send is not None:
            self.connection.call_at_flush(partial(self._sent, send))  # and nothing is in the way of bells meanwhile

    def _ring_bell(self) -> None:
        self._tell(pack_header(Kind.MORE))

    def _room_came(self) -> None:
        """The peer has read what was in its way. The read side is free."""
        with self._issue_lock:
            if self._writes is not None:
                self._write_lane(self._writes)
        self.connection.flush()

    def _used(self) -> None:
        """The memory is in use; it is given back some time after."""
        self._num_written += 1
        if not self._forget_timer:
            self._forget_timer = True
            self.connection.loop.call_later(FORGET_S, weakly(self._forget_later, self._num_written))

    def _check_all_gone(self) -> None:
        if not self._held and not (self._writes is not None and self._writes.waiting):
            self._tell_all_gone()

    def _tell_all_gone(self) -> None:
        all_gone, self._all_gone = self._all_gone, None
        if all_gone is not None:  # not with the lock held
            self.connection.loop.call_soon(settler(all_gone))

    def _tell(self, frame: bytes) -> None:
        """Send a frame now, so that the peer goes on while we do; ``flush`` is called soon."""
        if not self.connection.send_now(frame):
            self.connection.queue(frame)

    def _go_on(self, num_released: int) -> None:
        """The peer has read so many pieces. The read side is free."""
        with self._issue_lock:
            if self._ring is None:
                return
            if not self._space.release(num_released):
                self.connection.abort(f"{num_released} pieces were released, but fewer were in use")
                return
            self._write_held()
        self.connection.flush()

    def _forget_later(self, num_written: int) -> None:
        """On the progress thread, while the ring is used now and then: is it still?"""
        with self._issue_lock:
            if self._ring is None:
                return
            is_idle = self._space.num_pieces == 0 and (self._writes is None or self._writes.is_idle)
            self._forget_timer = self._num_written != num_written or not is_idle
            if self._forget_timer:
                self.connection.loop.call_later(FORGET_S, weakly(self._forget_later, self._num_written))
            else:
                self._ring.forget(self._offsets.ring, RING_BYTES)
                self._ring.forget(self._offsets.window, WINDOW_BYTES)

    # The rest of sending takes it.

    def _detach_send(self, send: Send) -> None:
        """The copy is made without the lock: it may be much, and the progress thread would wait for that."""
        turn = threading.Event()
        try:
            going = self._stop_writing(send, turn)
            if going is not None and going[1] is turn:
                self._go_on_from_copy(going[0])
            elif going is not None:  # another thread cancels it, too
                going[1].wait()
        except BaseException as error:  # no memory, or an interrupt: it can neither go on nor be left out
            self.connection.abort(f"the rest of a cancelled message could not be copied: {error!r}")
            with self._issue_lock:
                self._drop_held()
            if not isinstance(error, MemoryError | OSError):
                raise
        finally:
            turn.set()
        super()._detach_send(send)  # then: it may have gone on to the connection meanwhile

    def _stop_writing(self, send: Send, turn: threading.Event) -> tuple[Payload[Send], threading.Event] | None:
        """Return what is held of a send, if something is, which waits until this turn or another one is over."""
        with self._issue_lock:  # so nobody is reading from it
            for outgoing in (*self._held, *(() if self._writes is None else self._writes.waiting)):
                if outgoing.owner is send:
                    outgoing.detached = outgoing.detached or turn
                    return outgoing, outgoing.detached
        return None

    def _go_on_from_copy(self, outgoing: Payload[Send]) -> None:
        copies = deque(map(copied, outgoing.segments))
        with self._issue_lock:
            outgoing.owner, outgoing.segments, outgoing.detached = None, copies, None
            self._write_held()
            if self._writes is not None:
                self._write_lane(self._writes)

    def _drop_held(self) -> None:
        """With the issue lock held: nothing of what waits is read any more."""
        self._held.clear()
        self._num_unsaid = 0
        if self._writes is not None:
            self._writes.close()
        self._tell_all_gone()

    # ---- receiving: with the read side held

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.kind not in PAYLOAD_KINDS or not header.flags & (FLAG_SHARED | FLAG_LANE):
            return super().begin(header, meta)
        if header.flags & FLAG_LANE:
            self._begin_on_lane(header, meta)
        elif len(meta) < PLACE.size or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} says that it lies in shared memory, but not where")
        else:
            self._begin_in_ring(header, meta[PLACE.size :], *PLACE.unpack_from(meta))
        return None

    def _begin_on_lane(self, header: Header, meta: bytes) -> None:
        """A payload comes through the lane, whatever becomes of it."""
        if len(meta) < LENGTH.size or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} comes through shared memory, but does not say how long it is")
        if self._lane_reads is None:
            raise ProtocolError(f"message {header.seq} comes through shared memory, of which there is none")
        (size_bytes,) = LENGTH.unpack_from(meta)
        if not SHARED_EAGER_BYTES < size_bytes <= MAX_PAYLOAD_BYTES:
            raise ProtocolError(f"message {header.seq} of {size_bytes} bytes comes through the wrong part of memory")
        arrival = self._begin_payload(header, meta[LENGTH.size :], size_bytes)
        target = None if arrival.dropped else self._destination(arrival)
        self._lane_reads.expect(header.seq, size_bytes, target)

    def _begin_in_ring(self, header: Header, meta: bytes, offset: int, size_bytes: int) -> None:
        """A message lies in the ring: read it for the receive that waits for it, or let it lie there for a while."""
        ring = self._checked_ring(offset, size_bytes)
        message = Message(meta, size_bytes, header.flags & FLAG_COLLECTIVE)
        receive = self._meet_complete(header, message)
        if receive is not None and receive.view is not None:
            ring.read(self._peer_offsets.ring + offset, receive.view)
            self._was_read(size_bytes)
            self._received(receive, header, message)
        elif not self._wait_lying(header, message, offset):
            self._begin_usually(header, message, offset)

    def _wait_lying(self, header: Header, message: Message, offset: int) -> bool:
        """Let a message wait where it lies, which no receive waits for. False: it has to go the usual way."""
        if not is_eager(header):
            return False
        key = key_of(message.space, header.tag)
        check_form(message)
        if not self._inbox.wait_complete(key, header.seq, message, message.size_bytes):
            return False
        self.messages_received += 1
        self.bytes_received += message.size_bytes
        self._keep(message, offset)
        if message.space == USER:
            self._serve_any(key)
        return True

    def _begin_usually(self, header: Header, message: Message, offset: int) -> None:
        arrival = self._begin_payload(header, message.meta, message.size_bytes)
        if arrival.posted is None and not arrival.dropped:
            check_form(arrival.message)  # which was announced with its description
            self._keep(arrival.message, offset)
        else:
            target = None if arrival.dropped else self._destination(arrival)
            if target is not None:
                self._checked_ring(offset, message.size_bytes).read(self._peer_offsets.ring + offset, target)
            self._was_read(message.size_bytes)
        self._all_came(header.seq)

    def _keep(self, message: Message, offset: int) -> None:
        """Nobody waits for this message, which lies in the ring whole: let it lie there for a while."""
        message.piece = self._reads.keep(offset, message.size_bytes)
        self._waiting[message.piece] = message
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
            self.connection.loop.call_later(ROOM_S, weakly(self._check_room, self._num_taken))

    def _check_room(self, num_taken: int) -> None:
        self.connection.run(partial(self._make_room_late, num_taken))

    def _make_room_late(self, num_taken: int) -> None:
        self._room_timer = False
        if self._reads.kept_bytes > KEPT_BYTES:
            if num_taken == self._num_taken:
                self._empty()
            else:
                self._make_room()

    def _empty(self) -> bool:
        """Take all out. False: there is no memory for that, and the connection is over.

        It is not raised: a receive of another message may be at the bottom of it.
        """
        try:
            for message in list(self._waiting.values()):
                self._take_out(message)
        except ProtocolError as error:
            self.connection.abort(str(error))
            return False
        return True

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
        ring.read(self._peer_offsets.ring + piece.offset, target)
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

    def end(self, header: Header, meta: bytes) -> None:
        kind = header.kind
        if kind in PAYLOAD_KINDS:
            if header.flags & (FLAG_SHARED | FLAG_LANE):
                self._act()
            else:
                super().end(header, meta)
        elif kind == Kind.MORE:
            self._read_lane()
        elif kind == Kind.ROOM:
            self.connection.defer(self._room_came)
        elif kind == Kind.RELEASE:
            self.connection.defer(partial(self._go_on, header.seq))
        elif kind == Kind.SHARE:
            self._map_peer_memory()
        elif kind == Kind.MAPPED:
            self.connection.defer(partial(self._memory.voted, self.rank, by_all=header.seq == 1))
        elif kind == Kind.UNUSED:
            self.connection.defer(partial(self._memory.unused_by, self.rank, header.seq))
        elif kind == Kind.SHARED:
            self._peer_has_lanes = LANES_WORK and not header.flags & NO_LANES
            self.connection.defer(partial(self._memory.answered, self.rank, meta.decode(errors="replace")))
        else:
            super().end(header, meta)

    def _map_peer_memory(self) -> None:
        text = self._memory.lent(self.rank, self.connection.take_descriptor()).encode()
        # With an error it would be mapped for as long as the stream is there; a second time, the lane's be unmapped.
        if self._error is None and self._peer_ring is None:
            self._peer_ring = ring = self._memory.theirs.get(self.rank)
            if ring is not None and LANES_WORK:
                page, window = (ring.address + at for at in (self._peer_offsets.page, self._peer_offsets.window))
                self._lane_reads = LaneReads(
                    open_reader(page, window),
                    ring=self._say_room,
                    came=self._all_came,
                    again=partial(self._again, self._read_again),
                    memory=ring,
                )
        self.connection.takes_descriptors = False
        flags = 0 if LANES_WORK else NO_LANES
        self.connection.queue(pack_header(Kind.SHARED, flags=flags, meta_bytes=len(text)) + text)
        self.connection.defer(self.connection.flush)

    def _read_lane(self) -> None:
        if self._lane_reads is not None:
            self._lane_reads.read()
            self._act()

    def _read_again(self) -> None:
        """A turn was over."""
        self.connection.run(self._read_lane_late)

    def _read_lane_late(self) -> None:
        try:
            self._read_lane()
        except ProtocolError as error:
            self.connection.abort(str(error))

    def _say_room(self) -> None:
        self._tell(pack_header(Kind.ROOM))
        self.connection.defer(self.connection.flush)

    def _bye(self) -> None:
        if self._lane_reads is not None:
            self._lane_reads.read(to_the_end=True)
        super()._bye()

    def _was_read(self, size: int) -> None:
        self._reads.read(size)
        if self._reads.kept_bytes > KEPT_BYTES:  # it was read, but not released behind one that waits
            self._make_room()
        self._report_soon()

    def _checked_ring(self, offset: int, size: int) -> SharedRegion:
        ring = self._peer_ring
        if not 0 < size <= SHARED_EAGER_BYTES or offset + size > RING_BYTES or ring is None:
            raise ProtocolError(f"a message of {size} bytes at {offset} of the shared memory")
        return ring

    def _report_soon(self) -> None:
        if self._reads.released_bytes >= REPORT_BYTES:
            self._report()
        elif self._reads.num_released and not self._report_timer:
            self._report_timer = True
            self.connection.loop.call_later(REPORT_S, weakly(self._report_late))

    def _report(self) -> None:
        """Now, not after all else that has come: the peer writes on while we read that."""
        self._tell(pack_header(Kind.RELEASE, seq=self._reads.take_released()))
        self.connection.defer(self.connection.flush)

    def _report_late(self) -> None:
        self.connection.run(self._report_rest)

    def _report_rest(self) -> None:
        self._report_timer = False
        if self._reads.num_released:
            self._report()

    def _redirect(self, seq: int, target: memoryview) -> int:
        incoming = None if self._lane_reads is None else self._lane_reads.find(seq)
        if incoming is None:
            return super()._redirect(seq, target)
        incoming.target = target
        return incoming.received

    # ---- the end

    def _fail_all(self, error: Exception) -> None:
        with self._issue_lock:
            self._drop_held()
            self._ring, self._writes, self._refused = None, None, True
        if self._lane_reads is not None:
            self._lane_reads.close()
        self._lane_reads = None
        if self._kept and not self._empty():
            logger.warning("world %s: messages of rank %d are lost: no memory", self._owner.world, self.rank)
            self._kept = False
        self._waiting.clear()
        self._peer_ring = None
        super()._fail_all(error)

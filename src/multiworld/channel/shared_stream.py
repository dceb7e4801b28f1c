"""A message stream between two processes of one host: payloads go through memory that both map.

The connection, a Unix socket, carries all headers, small payloads, and everything for as long as there is no shared
memory. Our memory (``host_memory``) is offered when the first larger payload comes. Once the peer has answered that it
mapped it, a payload of moderate size goes whole into the ring in it, where it may wait for its receive. A slot says
where it lies (``slots``), or a frame if it had to wait for room, or was announced before. A large one, whose receive
waits, goes through the lane: its frame says that it comes.

Messages arrive in the order of their numbers, and pieces of the ring in that of theirs: a slot waits for the frames
that were sent before it, and a frame for the slots. Slots are read when somebody wants something, who may have what
lies there straight into the tensor.

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
from typing import Any, NamedTuple

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
from .matching import WINDOW_BYTES as EAGER_WINDOW_BYTES
from .matching import Outbox
from .ring import ALIGNMENT, Piece, RingReads, RingSpace
from .shared_region import SharedRegion
from .slots import MAX_META_BYTES, SLOTS_BYTES, WORDS_AT, Slot, SlotReader, SlotWriter
from .stream import (
    COLLECTIVE,
    EAGER_BYTES,
    FLAG_COLLECTIVE,
    FLAG_CREDITED,
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
from .stream import REPORT_BYTES as WINDOW_REPORT_BYTES
from .tensors import memory_of

__all__ = ["SharedStream"]

logger = logging.getLogger(__name__)

FLAG_SHARED, FLAG_LANE = 16, 32
NO_LANES = 1  # of an answer to memory
NO_ROOM = 1  # of a bell for slots: what is in them is in the way
INLINE_BYTES = 16 * 1024  # up to here a copy through the socket costs less than the ring's frames
REPORT_BYTES = RING_BYTES // 8  # what is read before the sender hears of it
SHARED_EAGER_BYTES = RING_BYTES // 8  # what goes through the ring, where it can lie until it is received
MAX_PIECES = RING_BYTES // ALIGNMENT
KEPT_BYTES = RING_BYTES // 3  # what may wait in the ring for its receive while other receives wait
assert KEPT_BYTES + REPORT_BYTES <= RING_BYTES // 2, "see RingSpace"
ROOM_S = 0.005  # or if nobody has received anything for so long
REPORT_S = 0.1  # or so long after it was read
PLACE = struct.Struct("<QQQ")  # where in the ring a payload lies, its size, and which piece it is
LENGTH = struct.Struct("<Q")
NUMBERED_KINDS = frozenset((int(Kind.MESSAGE), int(Kind.ANNOUNCE)))
ORDERED_KINDS = NUMBERED_KINDS | {int(Kind.BYE), int(Kind.REJECT)}
"""Frames whose place among the messages matters."""


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

    def frame(self, offset: int, piece: int) -> bytes:
        place = PLACE.pack(offset, self.size_bytes, piece)
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
        self._slot_writes: SlotWriter | None = None
        self._refused = self._has_offered = False
        self._peer_has_lanes = LANES_WORK
        self._space = RingSpace(RING_BYTES)
        self._held: deque[_Outgoing] = deque()
        self._all_gone: Operation[None] | None = None  # somebody waits until nothing is held
        self._num_written = 0
        self._num_released = 0
        self._forget_timer = self._ask_timer = False
        # What comes; guarded by the connection's read side.
        self._peer_ring: SharedRegion | None = None
        self._lane_reads: LaneReads | None = None
        self._slot_reads: SlotReader | None = None
        self._slots_wait = False  # for what was sent through the socket before
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

    def _send_at_once(self, space: int, tag: int, meta: bytes, tensor: Tensor) -> bool:
        size = tensor.nbytes
        if size <= INLINE_BYTES:
            return super()._send_at_once(space, tag, meta, tensor)
        if size > SHARED_EAGER_BYTES or self._slot_writes is None or len(meta) > MAX_META_BYTES:
            return False
        connection, outbox = self.connection, self._outbox
        with self._issue_lock:
            ring, slots = self._ring, self._slot_writes
            if ring is None or slots is None or self._held or connection.closed:
                return False
            try:
                if not outbox.allows_eager(size):
                    self._collect(slots)
                    if self._held or not outbox.allows_eager(size):
                        return False
                if not slots.has_room():
                    return False
                piece, offset = self._space.num_taken, self._take_room(slots, size)
                if offset is None:
                    return False
                seq = outbox.issue_eager(size)
                slot = (seq, tag << 1 | space, offset, size, piece, meta)
                is_bell = slots.put(slot, ring.address + self._offsets.ring + offset, tensor.data_ptr())
                if is_bell:
                    self._tell(pack_header(Kind.SLOTS))
            except ProtocolError as error:
                connection.abort(str(error))
                return False
            except BaseException:  # an interrupt: it has a number that the peer was perhaps not told of
                connection.abort("interrupted while sending")
                raise
            self._num_written += 1
            if not self._forget_timer:
                self._forget_soon()
        if is_bell:
            connection.flush()
        self.messages_sent += 1
        self.bytes_sent += size
        return True

    def say_mapped(self, *, by_all: bool) -> None:
        self.connection.send(pack_header(Kind.MAPPED, seq=by_all))

    def say_unused(self, seq: int) -> None:
        self.connection.send(pack_header(Kind.UNUSED, seq=seq))

    # The rest of sending has the issue lock held.

    def _issue(self, send: Send) -> None:
        slots = self._slot_writes
        try:
            if slots is not None:
                self._collect(slots)
            super()._issue(send)
            if slots is not None:
                self._rest_for_window(slots)
        except ProtocolError as error:
            self.connection.abort(str(error))

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
        ready, ring = self._memory.ready(self.rank), self._memory.own
        if ready and ring is not None and self._peer_has_lanes and self._error is None:
            page, window, slots = (
                ring.address + at for at in (self._offsets.page, self._offsets.window, self._offsets.slots)
            )
            self._ring = ring
            self._slot_writes = SlotWriter(
                page + WORDS_AT, slots, ring, max_pieces=MAX_PIECES, window_bytes=EAGER_WINDOW_BYTES
            )
            self._writes = LaneWrites(
                open_writer(page, window),
                ring=self._ring_bell,
                written=self._has_gone,
                again=partial(self._again, self._room_came),
                memory=ring,
            )
        self._refused = ready is False or (ready is True and not self._peer_has_lanes)
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
        try:
            while self._held and self._held[0].detached is None and self._write_first(self._held[0]):
                pass
        except ProtocolError as error:
            self.connection.abort(str(error))
        self._check_all_gone()

    def _write_first(self, outgoing: _Outgoing) -> bool:
        """Send what has waited longest. False: there is still no room for it."""
        head, frame, segments, owner = outgoing.head, outgoing.frame, outgoing.segments, outgoing.owner
        if head is not None:
            slots = self._slot_writes
            assert slots is not None
            piece, offset = self._space.num_taken, self._take_room(slots, head.size_bytes)
            while offset is None:
                if slots.rest():
                    self._ask_for_room_soon()
                    return False
                offset = self._take_room(slots, head.size_bytes)
            self._write_ring(offset, segments)
            frame = b"" if self._put(slots, head, offset, piece) else head.frame(offset, piece)
            segments = deque()
        self._num_unsaid -= 1
        self._held.popleft()
        if frame:
            self.connection.queue(frame, *segments, on_sent=None if owner is None else partial(self._sent, owner))
        else:
            self._has_gone(owner)
        return True

    def _take_room(self, slots: SlotWriter, size_bytes: int) -> int | None:
        """Take a piece of the ring, if need be one that the peer has released meanwhile. None: there is no room."""
        offset = self._space.take(size_bytes)
        return self._space.take(size_bytes) if offset is None and self._collect(slots) else offset

    def _collect(self, slots: SlotWriter) -> bool:
        """Learn what the peer has released and consumed. Whether it has released something."""
        released, consumed = slots.take_released(), slots.take_consumed()
        self._num_released += released
        if not self._space.release(released):
            raise ProtocolError(f"{released} pieces were released, but fewer were in use")
        for send in self._outbox.consumed(consumed) if consumed else ():
            self._queue_payload(send, 0)
        return released > 0

    def _rest_for_window(self, slots: SlotWriter) -> None:
        """Be told of what the peer consumes, if messages wait for that."""
        while self._outbox.waits_for_window and not slots.rest():
            self._collect(slots)

    def _put(self, slots: SlotWriter, head: _Head, offset: int, piece: int) -> bool:
        """Put a message whose payload is in the ring into a slot. False: there is none for it."""
        if head.kind != MESSAGE or head.flags & FLAG_CREDITED or len(head.meta) > MAX_META_BYTES:
            return False
        if not slots.has_room():
            return False
        key = key_of(head.flags & FLAG_COLLECTIVE, head.tag)
        if slots.put((head.seq, key, offset, head.size_bytes, piece, head.meta)):
            self._tell(pack_header(Kind.SLOTS))
        return True

    def _write_ring(self, offset: int, segments: deque[memoryview]) -> None:
        assert self._ring is not None
        for segment in segments:
            self._ring.write(self._offsets.ring + offset, segment)
            offset += len(segment)
        self._used()

    def _ask_for_room_soon(self) -> None:
        if not self._ask_timer and self._slot_writes is not None:
            self._ask_timer = True
            self.connection.loop.call_later(ROOM_S, weakly(self._ask_for_room, self._num_released))

    def _ask_for_room(self, num_released: int) -> None:
        """On the progress thread: the peer may not have looked at what is in the slots, and in our way."""
        with self._issue_lock:
            self._ask_timer = False
            if not self._held or self._slot_writes is None:
                return
            if num_released == self._num_released:
                self._tell(pack_header(Kind.SLOTS, flags=NO_ROOM))
            self._ask_for_room_soon()
        self.connection.flush()

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
            self._forget_soon()

    def _forget_soon(self) -> None:
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

    def _go_on(self) -> None:
        """The peer has released or consumed something. The read side is free."""
        with self._issue_lock:
            slots = self._slot_writes
            if slots is not None:
                try:
                    self._collect(slots)
                    self._rest_for_window(slots)
                except ProtocolError as error:
                    self.connection.abort(str(error))
                self._write_held()
        self.connection.flush()

    def _forget_later(self, num_written: int) -> None:
        """On the progress thread, while the ring is used now and then: is it still?"""
        with self._issue_lock:
            if self._ring is None or self._slot_writes is None:
                return
            try:
                self._collect(self._slot_writes)
            except ProtocolError as error:
                self.connection.abort(str(error))
            is_idle = self._space.num_pieces == 0 and (self._writes is None or self._writes.is_idle)
            self._forget_timer = False
            if self._num_written != num_written or not is_idle:
                self._forget_soon()
            else:
                self._ring.forget(self._offsets.ring, RING_BYTES)
                self._ring.forget(self._offsets.window, WINDOW_BYTES)
                self._ring.forget(self._offsets.slots, SLOTS_BYTES)

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

    def take_whole(self, header: Header, meta: bytes, payload: memoryview) -> bool:
        self._take_earlier(header)
        was_taken = super().take_whole(header, meta, payload)
        if self._slots_wait:
            self._look()
        return was_taken

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        self._take_earlier(header)
        if header.kind not in PAYLOAD_KINDS or not header.flags & (FLAG_SHARED | FLAG_LANE):
            return super().begin(header, meta)
        if header.flags & FLAG_LANE:
            self._begin_on_lane(header, meta)
        elif len(meta) < PLACE.size or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} says that it lies in shared memory, but not where")
        else:
            offset, size_bytes, piece = PLACE.unpack_from(meta)
            if piece != self._reads.num_came:  # of an announced message, whose number is an earlier one
                self._take_slots()
            self._begin_in_ring(header, meta[PLACE.size :], offset, size_bytes, piece)
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

    def _begin_in_ring(self, header: Header, meta: bytes, offset: int, size_bytes: int, piece: int) -> None:
        """A message lies in the ring: read it for the receive that waits for it, or let it lie there for a while."""
        ring = self._checked_ring(offset, size_bytes)
        if piece != self._reads.num_came:
            raise ProtocolError(f"piece {piece} of the shared memory instead of piece {self._reads.num_came}")
        message = Message(meta, size_bytes, header.flags & FLAG_COLLECTIVE)
        receive = self._meet_complete(header, message)
        if receive is not None and receive.view is not None:
            ring.read(self._peer_offsets.ring + offset, receive.view)
            self._was_read(size_bytes)
            self._received(receive, header, message)
        elif not self._wait_lying(header, message, offset):
            self._begin_usually(header, message, offset)

    # Slots.

    def _may_be_here(self, key: int) -> bool:
        slots = self._slot_reads
        return (slots is not None and slots.has_some) or super()._may_be_here(key)

    def _receive_at_once(self, key: int, meta: bytes, tensor: Tensor) -> Operation[Any] | None:
        slots = self._slot_reads
        if slots is None or self._error is not None or self._inbox.has_complete(key):
            return super()._receive_at_once(key, meta, tensor)
        try:
            return self._receive_from_slot(slots, key, meta, tensor)
        except ProtocolError as error:
            self.connection.abort(str(error))
            return None

    def _receive_from_slot(self, slots: SlotReader, key: int, meta: bytes, tensor: Tensor) -> Operation[Any] | None:
        """Receive the message that the first slot speaks of. None: it is another one, or has to go the usual way."""
        slot = self._next_slot(slots)
        if slot is None:
            return None
        seq, its_key, offset, size, _, its_meta = slot
        if its_key != key or its_meta != meta or size != tensor.nbytes:
            return None
        ring = self._checked_ring(offset, size)
        if not self._inbox.take_arriving(key, seq, size):
            return None
        slots.take(tensor.data_ptr(), ring.address + self._peer_offsets.ring + offset)
        self._num_taken += 1
        self._was_read(size)
        self.messages_received += 1
        self.bytes_received += size
        if self._inbox.consumed_bytes >= WINDOW_REPORT_BYTES:
            self._act()
        return Operation.succeeded(None, partial(self._give_back_slot, slot, tensor))

    def _give_back_slot(self, slot: Slot, tensor: Tensor) -> None:
        space = slot.key & COLLECTIVE
        self._give_back(slot.key, slot.seq, Message(slot.meta, slot.size_bytes, space), tensor)

    def _next_slot(self, slots: SlotReader) -> Slot | None:
        """Return the first slot, if nothing comes before it that was sent through the socket."""
        slot = slots.first()
        if slot is None:
            self._slots_wait = False
            return None
        if slot.seq <= self._inbox.last_seq:
            raise ProtocolError(f"message {slot.seq} came after message {self._inbox.last_seq}")
        self._slots_wait = slot.seq != self._inbox.last_seq + 1 or slot.piece != self._reads.num_came
        return None if self._slots_wait else slot

    def _take_earlier(self, header: Header) -> None:
        """Let arrive what was put into slots before this frame was sent, if the order matters."""
        kind = header.kind
        if self._slot_reads is None:
            return
        if kind in ORDERED_KINDS and (kind not in NUMBERED_KINDS or header.seq != self._inbox.last_seq + 1):
            self._take_slots()

    def _take_slots(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Let arrive what lies in slots, while it is wanted."""
        slots = self._slot_reads
        while slots is not None and wanted():
            slot = self._next_slot(slots)
            if slot is None:
                return
            slots.take()
            header = Header(MESSAGE, slot.key & COLLECTIVE | FLAG_SHARED, 0, 0, slot.key >> 1, slot.seq)
            self._begin_in_ring(header, slot.meta, slot.offset, slot.size_bytes, slot.piece)
            self._act()

    def _take_slots_late(self) -> None:
        try:
            self._take_slots()
        except ProtocolError as error:
            self.connection.abort(str(error))

    def _is_wanted(self) -> bool:
        return self._inbox.has_posted or self._owner.wants_any

    def _look(self) -> None:
        """If somebody waits for a message: look for it in the slots, or else have the peer tell us of the next one."""
        slots = self._slot_reads
        try:
            while slots is not None and self._is_wanted() and not self.connection.closed:
                self._take_slots(self._is_wanted)
                if self._slots_wait or (self._is_wanted() and slots.rest()):
                    return
        except ProtocolError as error:
            self.connection.abort(str(error))

    # The ring.

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
        if not receive.operation.done:
            self._look()
        if self._reads.kept_bytes > KEPT_BYTES:
            self._make_room()

    def _offered(self, key: int) -> None:
        super()._offered(key)
        self._look()

    def queue_depths(self) -> tuple[int, int, int]:
        receives, messages, sends = super().queue_depths()
        slots = self._slot_reads
        return receives, messages + (0 if slots is None else len(slots)), sends

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
        self._end(header, meta)
        if self._slots_wait:
            self._look()

    def _end(self, header: Header, meta: bytes) -> None:
        kind = header.kind
        if kind in PAYLOAD_KINDS:
            if header.flags & (FLAG_SHARED | FLAG_LANE):
                self._act()
            else:
                super().end(header, meta)
        elif kind == Kind.SLOTS:
            if header.flags & NO_ROOM:
                self._take_slots()
            self._look()
        elif kind == Kind.MORE:
            self._read_lane()
        elif kind == Kind.ROOM:
            self.connection.defer(self._room_came)
        elif kind == Kind.RELEASE:
            self.connection.defer(self._go_on)
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
                offsets = self._peer_offsets
                page, window, slots = (ring.address + at for at in (offsets.page, offsets.window, offsets.slots))
                self._slot_reads = SlotReader(page + WORDS_AT, slots, ring)
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
        self._look()

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
        slots = self._slot_reads
        if slots is not None and slots.release(self._reads.take_released()):
            self._tell(pack_header(Kind.RELEASE))
            self.connection.defer(self.connection.flush)

    def _say_consumed(self, size_bytes: int) -> None:
        slots = self._slot_reads
        if slots is None or not self._reads.num_came:  # the peer does not look there yet
            super()._say_consumed(size_bytes)
        elif slots.consume(size_bytes):
            self._tell(pack_header(Kind.RELEASE))
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
            self._ring, self._writes, self._slot_writes, self._refused = None, None, None, True
        if self._kept:
            self._take_slots_late()
        self._slot_reads, self._slots_wait = None, False
        if self._lane_reads is not None:
            self._lane_reads.close()
        self._lane_reads = None
        if self._kept and not self._empty():
            logger.warning("world %s: messages of rank %d are lost: no memory", self._owner.world, self.rank)
            self._kept = False
        self._waiting.clear()
        self._peer_ring = None
        super()._fail_all(error)

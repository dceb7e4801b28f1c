"""The sending half of a stream through shared memory: what waits for room, and how a payload gets into the memory.

Our memory (``host_memory``) is offered when the first larger payload comes, or the peer answers quickly. Once it has
answered that it mapped it, a payload of moderate size goes whole into the ring in it; a slot says where it lies
(``slots``), or a frame, if it was announced before or there is no slot for it. A small one does so unless the peer
sleeps: then a frame brings it. A large one, whose receive waits, goes through the pipe: its frame says that it comes.
Or, if that receive is of any payload and brings no memory for it, into lent memory, where it stays. A payload is out of
the caller's tensor once it is in the memory.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from torch import Tensor

from ...errors import ProtocolError
from ...wire.connection.connection import Connection
from ...wire.connection.frames import Kind, pack_header
from ...wire.memory.copying import copied
from ...wire.memory.shared_region import SharedRegion
from ...wire.progress.operation import Operation, settler
from ...wire.progress.waiting import is_blocked_here, running_loop
from ..shared_memory.host_memory import FORGET_S, RING_BYTES, HostMemory
from ..shared_memory.lent import LentWriter, Place
from ..shared_memory.pipe import WINDOW_BYTES, open_writer
from ..shared_memory.pipe import WORKS as PIPES_WORK
from ..shared_memory.pipe_payloads import Payload, PipeWrites
from ..shared_memory.ring import ALIGNMENT, RingSpace
from ..shared_memory.slots import MAX_META_BYTES, SLOTS_BYTES, WORDS_AT, SlotWriter
from .message import FLAG_COLLECTIVE, FLAG_CREDITED, MESSAGE, USER, Send, key_of
from .message_stream import MessageStream
from .outbox import WINDOW_BYTES as EAGER_WINDOW_BYTES
from .outbox import Outbox
from .owner import StreamOwner
from .sending import EAGER_BYTES, SMALL_BYTES

FLAG_SHARED: Final = 16
FLAG_PIPE: Final = 32
FLAG_LENT: Final = 64
"""Where a payload is; the last also of a credit, whose receive takes what lies there."""
NO_ROOM: Final = 1  # of a bell for slots: what is in them is in the way
INLINE_BYTES: Final = SMALL_BYTES  # up to here the frame that wakes a reader may as well bring the message
SHARED_EAGER_BYTES: Final = RING_BYTES // 8  # what goes through the ring, where it can lie until it is received
MAX_PIECES: Final = RING_BYTES // ALIGNMENT
MAX_ROUNDS: Final = 100_000  # more than there are pieces and messages that a peer could release one by one
KEPT_FORGET_S: Final = 60.0
ROOM_S: Final = 0.005  # until something is done about a full ring in which nothing moves
PLACE: Final = struct.Struct("<QQQ")  # where in the ring a payload lies, its size, and which piece it is
LENGTH: Final = struct.Struct("<Q")
LENT_PLACE: Final = struct.Struct("<QQQQ")  # a ``Place``


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
    may_overtake: bool  # frames: it is an eager message

    def frame(self, offset: int, piece: int) -> bytes:
        place = PLACE.pack(offset, self.size_bytes, piece)
        return _frame(self.kind, self.flags | FLAG_SHARED, self.tag, self.seq, place, self.meta)

    def pipe_frame(self) -> bytes:
        length = LENGTH.pack(self.size_bytes)
        return _frame(self.kind, self.flags | FLAG_PIPE, self.tag, self.seq, length, self.meta)

    def lent_frame(self, place: Place) -> bytes:
        return _frame(self.kind, self.flags | FLAG_LENT, self.tag, self.seq, LENT_PLACE.pack(*place), self.meta)


def _frame(kind: int, flags: int, tag: int, seq: int, place: bytes, meta: bytes) -> bytes:
    header = pack_header(kind, flags=flags, meta_bytes=len(place) + len(meta), tag=tag, seq=seq)
    return b"".join((header, place, meta))


class SharedSending(MessageStream):
    """What goes to one peer; ``SharedStream`` adds what comes from it."""

    def __init__(self, owner: StreamOwner, rank: int, memory: HostMemory) -> None:
        super().__init__(owner, rank, eager_bytes=SHARED_EAGER_BYTES)
        self._memory = memory
        memory.add(rank, self)
        self._offsets = memory.offsets(memory.rank, rank)
        # These are guarded by the issue lock.
        self._ring: SharedRegion | None = None  # our memory, once the peer has mapped it
        self._writes: PipeWrites[Send] | None = None  # the pipe in it
        self._slot_writes: SlotWriter | None = None
        self._lent_writes: LentWriter | None = None
        self._refused = self._has_offered = False
        self._has_withdrawn = False  # a message: the next one goes by a frame, behind the one that says so
        self._peer_has_pipes = PIPES_WORK
        self._peer_keeps = False  # what lies in lent memory, as it said with its last credit
        self._space = RingSpace(RING_BYTES)
        self._held: deque[_Outgoing] = deque()
        self._all_gone: Operation[None] | None = None  # somebody waits until nothing is held
        self._num_written = 0
        self._num_released = 0
        self._forget_timer = self._ask_timer = False
        self._forget_after_s = FORGET_S

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

    def send_bytes(self, space: int, tag: int, packed: bytearray) -> bool:
        slots = self._slot_writes
        if slots is None:
            if self._has_offered and not self._refused:
                self._use_memory()
        elif not slots.reader_rests:  # a slot is written from a tensor
            return False
        return len(packed) <= INLINE_BYTES and super().send_bytes(space, tag, packed)

    def _send_at_once(self, space: int, tag: int, meta: bytes, tensor: Tensor) -> bool:
        size, slots = tensor.nbytes, self._slot_writes
        if size > INLINE_BYTES:
            return size <= SHARED_EAGER_BYTES and slots is not None and self._send_in_slot(space, tag, meta, tensor)
        if slots is None:
            if self._has_offered and not self._refused:
                self._use_memory()
        elif size and not slots.reader_rests and self._send_in_slot(space, tag, meta, tensor):
            return True
        return super()._send_at_once(space, tag, meta, tensor)

    def _send_in_slot(self, space: int, tag: int, meta: bytes, tensor: Tensor) -> bool:
        """Send a message that fits in a piece of the ring, if there is room for it now, and nothing waits before it."""
        size = tensor.nbytes
        if len(meta) > MAX_META_BYTES:
            return False
        connection, outbox = self.connection, self._outbox
        with self._issue_lock:
            ring, slots = self._ring, self._slot_writes
            if ring is None or slots is None or self._held or self._has_withdrawn or connection.closed:
                return False
            try:
                if not outbox.allows_eager(size):
                    self._collect(slots)
                    if self._held or not outbox.allows_eager(size):
                        return False
                if not slots.has_room():
                    return False
                offset = self._take_room(slots, size)
                if offset is None:
                    return False
                piece = self._space.num_taken - 1  # not before: what waited for the window may have taken some
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
            self._used()
        if is_bell or connection.num_queued:  # what waited for the window goes, too
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
            if self._outbox.waits_for_window:
                self._write_held()
        except ProtocolError as error:
            self.connection.abort(str(error))
        except BaseException:  # an interrupt: what was collected may be counted nowhere
            self.connection.abort("interrupted while sending")
            raise

    def _queue_message(self, send: Send, flags: int) -> None:
        if not self._queue_in_memory(Kind.MESSAGE, send, flags, send.meta):
            super()._queue_message(send, flags)
        self._has_withdrawn = False

    def _number_eager(self, size_bytes: int) -> int:
        self._has_withdrawn = False
        return super()._number_eager(size_bytes)

    def _queue_payload(self, send: Send, flags: int) -> None:
        if not self._queue_in_memory(Kind.PAYLOAD, send, flags, b""):
            super()._queue_payload(send, flags)

    def _queue_in_memory(self, kind: Kind, send: Send, flags: int, meta: bytes) -> bool:
        """Queue a payload that goes through memory. False: it does not."""
        size_bytes = send.size_bytes
        if size_bytes <= INLINE_BYTES or not self._get_ready():
            return False
        may_overtake = kind == MESSAGE and not flags & FLAG_CREDITED and not self._has_withdrawn
        head = _Head(kind, flags | send.space, send.tag, send.seq, size_bytes, meta, may_overtake)
        if size_bytes <= SHARED_EAGER_BYTES:
            self._hold(_Outgoing(send, head=head))
            if len(self._held) == 1:
                self._write_held()
            return True
        writes = self._writes
        if writes is None:
            return False
        place = self._lend(send, writes)
        frame = head.pipe_frame() if place is None else head.lent_frame(place)
        if self._num_unsaid:
            self._hold(_Outgoing(None, frame=frame))
        else:
            self._tell(frame)
        if place is not None:
            self._has_gone(send)
            return True
        writes.waiting.append(Payload(send, send.segments))
        if len(writes.waiting) == 1:
            self._write_pipe(writes)
        return True

    def _lend(self, send: Send, writes: PipeWrites[Send]) -> Place | None:
        """Lay a payload where its receiver keeps it. None: it goes through the pipe, as do those before it."""
        lent = self._lent_writes
        if lent is None or not self._peer_keeps or send.space != USER or not writes.is_idle:
            return None
        place = lent.put(send.segments, send.size_bytes)
        if place is not None:
            self._used()
        return place

    def _queue_withdrawal(self, send: Send) -> None:
        super()._queue_withdrawal(send)
        self._has_withdrawn = True

    def _get_ready(self) -> bool:
        """Whether the peer has mapped our memory, which is ready for use then; it is offered soon if it was not."""
        if self._ring is not None or self._refused:
            return self._ring is not None
        if not self._has_offered:  # on the progress thread: an offer tells others, who may send something here
            self._has_offered = True
            self.connection.loop.call_soon(self._offer)
        ready, ring = self._memory.ready(self.rank), self._memory.own
        if ready and ring is not None and self._peer_has_pipes and self._error is None:
            page, window, slots_at = (
                ring.address + at for at in (self._offsets.page, self._offsets.window, self._offsets.slots)
            )
            slots = SlotWriter(page + WORDS_AT, slots_at, ring, max_pieces=MAX_PIECES, window_bytes=EAGER_WINDOW_BYTES)
            writes: PipeWrites[Send] = PipeWrites(
                open_writer(page, window),
                ring=self._ring_bell,
                written=self._has_gone,
                again=partial(self._again, self._room_came),
                memory=ring,
            )
            if self._outbox.waits_for_window:
                slots.rest()
            lent = LentWriter(ring, self._offsets.page, self._offsets.lent, self._memory.lent_bytes)
            self._slot_writes, self._writes, self._lent_writes = slots, writes, lent
            self._ring = ring  # last: an interrupt before lets it be done again, and nothing was written
        self._refused = ready is False or (ready is True and not self._peer_has_pipes)
        return self._ring is not None

    def _use_memory(self) -> None:
        """Let small messages go through memory, too, as soon as the peer has mapped it."""
        with self._issue_lock:
            self._get_ready()

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
        slots = self._slot_writes
        try:
            for _ in range(MAX_ROUNDS):
                while self._held and self._held[0].detached is None and self._write_first(self._held[0]):
                    pass
                is_stuck = bool(self._held) and self._held[0].detached is None
                if slots is None or not (is_stuck or self._outbox.waits_for_window):
                    break
                if slots.rest():
                    if is_stuck:
                        self._ask_for_room_soon()
                    break
                self._collect(slots)
            else:
                raise ProtocolError("the peer goes on counting what it cannot have read")
        except ProtocolError as error:
            self.connection.abort(str(error))
        self._check_all_gone()

    def _write_first(self, outgoing: _Outgoing) -> bool:
        """Send what has waited longest. False: there is still no room for it."""
        head, frame, segments, owner = outgoing.head, outgoing.frame, outgoing.segments, outgoing.owner
        if head is not None:
            slots = self._slot_writes
            assert slots is not None
            offset = self._take_room(slots, head.size_bytes)
            if offset is None:
                return False
            piece = self._space.num_taken - 1
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
        if self._space.num_pieces:  # what is free again was used just now, and is in the processor's cache
            self._collect_released(slots)
        return self._space.take(size_bytes)

    def _collect_released(self, slots: SlotWriter) -> None:
        released = slots.take_released()
        self._num_released += released
        if not self._space.release(released):
            raise ProtocolError(f"{released} pieces were released, but fewer were in use")

    def _collect(self, slots: SlotWriter) -> None:
        """Learn what the peer has released and consumed."""
        self._collect_released(slots)
        consumed = slots.take_consumed()
        for send in self._outbox.consumed(consumed) if consumed else ():
            self._queue_payload(send, 0)

    def _put(self, slots: SlotWriter, head: _Head, offset: int, piece: int) -> bool:
        """Put a message whose payload is in the ring into a slot. False: there is none for it."""
        if not head.may_overtake or len(head.meta) > MAX_META_BYTES:
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
            self.connection.loop.call_later(ROOM_S, partial(self._ask_for_room, self._num_released))

    def _ask_for_room(self, num_released: int) -> None:
        """On the progress thread: the peer may not have looked at what is in the slots, and in our way."""
        with self._issue_lock:
            self._ask_timer = False
            if not self._held or self._slot_writes is None or self.connection.closed:
                return
            if num_released == self._num_released:
                self._tell(pack_header(Kind.SLOTS, flags=NO_ROOM))
            self._ask_for_room_soon()
        self.connection.flush()

    def _write_pipe(self, writes: PipeWrites[Send]) -> None:
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
                self._write_pipe(self._writes)
        self.connection.flush()

    def _used(self) -> None:
        """The memory is in use; it is given back some time after."""
        self._num_written += 1
        self._forget_after_s = FORGET_S
        if not self._forget_timer:
            self._forget_soon()

    def _forget_soon(self) -> None:
        self._forget_timer = True
        self.connection.loop.call_later(self._forget_after_s, partial(self._forget_later, self._num_written))

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
                if self._lent_writes is not None and self._lent_writes.forget():
                    self._forget_after_s = min(2 * self._forget_after_s, KEPT_FORGET_S)  # it may be kept for long
                    self._forget_soon()
        self.connection.flush()

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
                self._write_pipe(self._writes)

    def _drop_held(self) -> None:
        """With the issue lock held: nothing of what waits is read any more."""
        self._held.clear()
        self._num_unsaid = 0
        if self._writes is not None:
            self._writes.close()
        self._tell_all_gone()

    # ---- the end

    def _fail_all(self, error: Exception) -> None:
        with self._issue_lock:
            self._drop_held()
            if self._lent_writes is not None:
                self._lent_writes.forget()  # what others keep keeps all of it mapped
            self._ring, self._writes, self._slot_writes, self._refused = None, None, None, True
            self._lent_writes = None
        super()._fail_all(error)

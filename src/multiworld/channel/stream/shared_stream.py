"""A message stream between two processes of one host: payloads go through memory that both map.

The connection, a Unix socket, carries what has to be told to somebody who sleeps, small messages with it, and all for
as long as there is no shared memory. How a payload gets into that is the sending half's (``shared_sending``).

Messages arrive in the order of their numbers, and pieces of the ring in that of theirs: a slot waits for the frames
that were sent before it, and a frame for the slots. Slots are read when somebody wants something, who may have what
lies there straight into the tensor; else a payload waits in the ring for its receive, until it is in the way. A thread
that waits for a small message from a quick peer looks at the slots before it asks for that.

A payload is out of the memory once it is in the tensor that was posted for it, or a buffer; what came into lent memory
is a buffer itself. So a dead or slow peer holds nothing but our memory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import Tensor

from ...errors import ProtocolError
from ...wire.connection.frames import MAX_PAYLOAD_BYTES, Header, Kind, pack_header
from ...wire.memory.copying import copy_into
from ...wire.memory.shared_region import SharedRegion
from ...wire.progress.operation import Operation
from ...wire.progress.spinning import LOOK_S
from ...wire.progress.waiting import is_blocked_here
from ..payload.tensors import memory_of
from ..shared_memory.host_memory import RING_BYTES, HostMemory
from ..shared_memory.lent import LentReader, Place
from ..shared_memory.pipe import WINDOW_BYTES, open_reader
from ..shared_memory.pipe import WORKS as PIPES_WORK
from ..shared_memory.pipe_payloads import PipeReads
from ..shared_memory.ring import Piece, RingReads
from ..shared_memory.slots import WORDS_AT, Slot, SlotReader
from .inbox import Arrival
from .message import (
    COLLECTIVE,
    FLAG_COLLECTIVE,
    MESSAGE,
    PAYLOAD_KINDS,
    USER,
    Message,
    Receive,
    check_form,
    is_eager,
    key_of,
)
from .message_stream import REPORT_BYTES as WINDOW_REPORT_BYTES
from .owner import StreamOwner
from .shared_sending import (
    FLAG_LENT,
    FLAG_PIPE,
    FLAG_SHARED,
    INLINE_BYTES,
    LENGTH,
    LENT_PLACE,
    NO_ROOM,
    PLACE,
    ROOM_S,
    SHARED_EAGER_BYTES,
    SharedSending,
)

logger = logging.getLogger(__name__)

NO_PIPES: Final = 1  # of an answer to memory
IN_MEMORY: Final = FLAG_SHARED | FLAG_PIPE | FLAG_LENT
REPORT_BYTES: Final = RING_BYTES // 8  # what is read before a sender that waits for room is told
KEPT_BYTES: Final = RING_BYTES // 3  # what may wait in the ring for its receive while other receives wait
assert KEPT_BYTES + REPORT_BYTES <= RING_BYTES // 2, "see RingSpace"
REPORT_S: Final = 0.1  # or so long after it was read
NUMBERED_KINDS: Final = frozenset((int(Kind.MESSAGE), int(Kind.ANNOUNCE)))
ORDERED_KINDS: Final = NUMBERED_KINDS | {int(Kind.BYE), int(Kind.REJECT)}
"""Frames whose place among the messages matters."""


class SharedStream(SharedSending):
    """One peer's messages in both directions."""

    def __init__(self, owner: StreamOwner, rank: int, memory: HostMemory) -> None:
        super().__init__(owner, rank, memory)
        self._peer_offsets = memory.offsets(rank, memory.rank)
        # These are guarded by the connection's read side.
        self._peer_ring: SharedRegion | None = None
        self._pipe_reads: PipeReads | None = None
        self._slot_reads: SlotReader | None = None
        self._lent_reads: LentReader | None = None
        self._keeps = False  # the last receive would have what lies in lent memory as it is
        self._slots_wait = False  # for what was sent through the socket before
        self._reads = RingReads()
        self._waiting: dict[Piece, Message] = {}  # whole messages that wait in the ring
        self._report_timer = self._room_timer = False
        self._num_taken = 0

    # ---- receiving: with the read side held

    def take_whole(self, header: Header, meta: bytes, payload: memoryview) -> bool:
        self._take_earlier(header)
        was_taken = super().take_whole(header, meta, payload)
        if self._slots_wait:
            self._ask_to_be_told()
        return was_taken

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        self._take_earlier(header)
        if header.kind not in PAYLOAD_KINDS or not header.flags & IN_MEMORY:
            return super().begin(header, meta)
        if header.flags & FLAG_PIPE:
            self._begin_on_pipe(header, meta)
        elif header.flags & FLAG_LENT:
            self._begin_lent(header, meta)
        elif len(meta) < PLACE.size or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} says that it lies in shared memory, but not where")
        else:
            offset, size_bytes, piece = PLACE.unpack_from(meta)
            if piece != self._reads.num_came:  # of an announced message, whose number is an earlier one
                self._take_slots()
            self._begin_in_ring(header, meta[PLACE.size :], offset, size_bytes, piece)
        return None

    def _begin_on_pipe(self, header: Header, meta: bytes) -> None:
        """A payload comes through the pipe, also one that nobody takes."""
        if len(meta) < LENGTH.size or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} comes through shared memory, but does not say how long it is")
        if self._pipe_reads is None:
            raise ProtocolError(f"message {header.seq} comes through shared memory, of which there is none")
        (size_bytes,) = LENGTH.unpack_from(meta)
        if not SHARED_EAGER_BYTES < size_bytes <= MAX_PAYLOAD_BYTES:
            raise ProtocolError(f"message {header.seq} of {size_bytes} bytes comes through the wrong part of memory")
        arrival = self._begin_payload(header, meta[LENGTH.size :], size_bytes)
        target = None if arrival.dropped else self._destination(arrival)
        self._pipe_reads.expect(header.seq, size_bytes, target)

    def _begin_lent(self, header: Header, meta: bytes) -> None:
        """A payload lies in lent memory: it is the buffer of its message, unless it has to be elsewhere."""
        if len(meta) < LENT_PLACE.size or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} says that it lies in lent memory, but not where")
        if self._lent_reads is None:
            raise ProtocolError(f"message {header.seq} lies in lent memory, but none is mapped")
        place = Place(*LENT_PLACE.unpack_from(meta))
        kept = self._lent_reads.tensor(place)
        arrival = self._begin_payload(header, meta[LENT_PLACE.size :], place.size_bytes)
        message = arrival.message
        receive = None if arrival.posted is None else arrival.posted.receive
        if receive is not None and receive.view is not None:
            copy_into(receive.view, memory_of(kept))
        elif not arrival.dropped:
            check_form(message)
            message.buffer = kept
        self._all_came(header.seq)

    def _begin_in_ring(self, header: Header, meta: bytes, offset: int, size_bytes: int, piece: int) -> None:
        """A message lies in the ring: read it for the receive that waits for it, or let it lie there for a while."""
        ring = self._checked_ring(offset, size_bytes)
        if piece != self._reads.num_came:
            raise ProtocolError(f"piece {piece} of the shared memory instead of piece {self._reads.num_came}")
        message = Message(meta, size_bytes, header.flags & FLAG_COLLECTIVE)
        receive = self._meet_complete(header, message)
        if receive is not None:
            ring.read(self._peer_offsets.ring + offset, self._place_of(receive, message))
            self._was_read(size_bytes)
            self._received(receive, header, message)
        elif not self._wait_lying(header, message, offset):
            self._begin_usually(header, message, offset)

    # Slots.

    def _comes_at_once(self, key: int, size_bytes: int) -> bool:
        """A thread that has nothing better to do looks for a moment, while that pays."""
        slots = self._slot_reads
        seen = 0 if slots is None else slots.interruptions
        if (slots is not None and slots.has_some) or super()._comes_at_once(key, size_bytes):
            return True
        if not self._may_look(key, size_bytes):
            return False
        if not self._has_offered and self.can_lend():
            self._use_memory()  # a peer that we wait for so briefly waits for us as briefly
        return slots is not None and self._look(slots, seen)

    def _may_look(self, key: int, size_bytes: int) -> bool:
        is_small = 0 < size_bytes <= INLINE_BYTES  # a large message waits for its receive
        return is_small and not key & COLLECTIVE and self.connection.quick_waits.pay and is_blocked_here()

    def _look(self, slots: SlotReader, seen: int) -> bool:
        """Look for a slot for a moment, unless there were more interruptions. True: there is one."""
        if slots.rests and not self.connection.run_now(partial(self._wake, slots)):
            return False
        quick_waits, began = self.connection.quick_waits, time.perf_counter()
        is_there, ended = slots.look(self.connection.fd, LOOK_S, seen), time.perf_counter()
        if is_there:
            quick_waits.waited(ended - began)
        elif ended - began >= LOOK_S:
            quick_waits.looked_in_vain(threading.get_ident(), began)
        return is_there

    def _wake(self, slots: SlotReader) -> bool:
        """Let the peer put the next message into a slot, unless another receive waits to be told."""
        if self._is_wanted():
            return False
        slots.wake()
        return True

    def _hand_over(self, receive: Receive, key: int, seq: int, message: Message, value: object) -> None:
        super()._hand_over(receive, key, seq, message, value)
        slots = self._slot_reads
        if slots is not None and slots.rests:
            self._wake(slots)  # whoever waited goes on, and finds the next message in a slot

    def _receive_at_once(self, key: int, meta: bytes, tensor: Tensor) -> Operation[Any] | None:
        slots = None if self.connection.was_interrupted else self._slot_reads
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

    def _take_slots(self, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Let arrive what lies in slots, while it is wanted. Return whether there is none any more."""
        slots = None if self.connection.was_interrupted else self._slot_reads
        while slots is not None and wanted():
            slot = self._next_slot(slots)
            if slot is None:
                return not self._slots_wait
            slots.take()
            header = Header(MESSAGE, slot.key & COLLECTIVE | FLAG_SHARED, 0, 0, slot.key >> 1, slot.seq)
            self._begin_in_ring(header, slot.meta, slot.offset, slot.size_bytes, slot.piece)
            self._act()
        return False

    def _take_slots_late(self) -> None:
        try:
            self._take_slots()
        except ProtocolError as error:
            self.connection.abort(str(error))

    def _is_wanted(self) -> bool:
        return self._inbox.has_posted or self._owner.wants_any

    def _ask_to_be_told(self) -> None:
        """If somebody waits for a message: have the peer tell us of the next slot, unless there is one."""
        slots = self._slot_reads
        try:
            while slots is not None and self._is_wanted() and not slots.rest() and not self.connection.closed:
                before = self._inbox.last_seq
                is_empty = self._take_slots(self._is_wanted)
                if self._slots_wait:
                    return
                if is_empty and self._inbox.last_seq == before:
                    raise ProtocolError("there was a slot, and now there is none")
        except ProtocolError as error:
            self.connection.abort(str(error))

    def _arrive(
        self, header: Header, meta: bytes, size_bytes: int, *, eager: bool, transferring: bool
    ) -> Arrival[Receive, Message]:
        arrival = super()._arrive(header, meta, size_bytes, eager=eager, transferring=transferring)
        if arrival.posted is None:
            self._end_look()
        return arrival

    def _put_back(self, key: int, seq: int, message: Message) -> None:
        super()._put_back(key, seq, message)
        self._end_look()

    def _end_look(self) -> None:
        """A message waits that somebody may look for elsewhere."""
        if self._slot_reads is not None:
            self._slot_reads.interrupt()

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
        self._end_look()
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
        """Nobody waits for this message, which lies in the ring whole: let it lie there for a while.

        A small one is taken out: what is behind it would have to stay in the ring, too.
        """
        if message.size_bytes <= INLINE_BYTES:
            message.buffer = self._allocate(message.size_bytes)
            ring = self._checked_ring(offset, message.size_bytes)
            ring.read(self._peer_offsets.ring + offset, memory_of(message.buffer))
            self._was_read(message.size_bytes)
            return
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

    def _post(self, receive: Receive, key: int) -> bool:
        self._keeps = receive.tensor is None
        waits = super()._post(receive, key)
        if waits:
            self._ask_to_be_told()
        if self._reads.kept_bytes > KEPT_BYTES:
            self._make_room()
        return waits

    def _offered(self, key: int) -> None:
        super()._offered(key)
        self._ask_to_be_told()

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
        if self._slots_wait or header.kind == Kind.WITHDRAW:  # whose receive may wait for another message now
            self._ask_to_be_told()

    def _end(self, header: Header, meta: bytes) -> None:
        kind = header.kind
        if kind in PAYLOAD_KINDS:
            if header.flags & IN_MEMORY:
                self._act()
            else:
                super().end(header, meta)
        elif kind == Kind.CREDIT:
            self._peer_keeps = bool(header.flags & FLAG_LENT)
            super().end(header, meta)
        elif kind == Kind.SLOTS:
            if header.flags & NO_ROOM:
                self._take_slots()
            else:
                self._take_slots(self._is_wanted)
            self._ask_to_be_told()
        elif kind == Kind.MORE:
            self._read_pipe()
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
            self._peer_has_pipes = PIPES_WORK and not header.flags & NO_PIPES
            self.connection.defer(partial(self._memory.answered, self.rank, meta.decode(errors="replace")))
        else:
            super().end(header, meta)

    def _credit_flags(self, key: int) -> int:
        return super()._credit_flags(key) | (FLAG_LENT if self._keeps else 0)

    def _map_peer_memory(self) -> None:
        descriptor = self.connection.take_descriptor()
        if self._error is not None:  # it would be mapped for as long as the stream is there, and nobody needs an answer
            if descriptor is not None:
                os.close(descriptor)
            return
        text = self._memory.lent(self.rank, descriptor).encode()
        if self._peer_ring is None:  # a second time, the pipe's would be unmapped
            self._peer_ring = ring = self._memory.theirs.get(self.rank)
            if ring is not None and PIPES_WORK:
                offsets = self._peer_offsets
                page, window, slots = (ring.address + at for at in (offsets.page, offsets.window, offsets.slots))
                self._slot_reads = SlotReader(page + WORDS_AT, slots, ring)
                self._lent_reads = LentReader(ring, offsets.page, offsets.lent, self._memory.lent_bytes)
                self._pipe_reads = PipeReads(
                    open_reader(page, window),
                    ring=self._say_room,
                    came=self._all_came,
                    again=partial(self._again, self._read_again),
                    memory=ring,
                )
        self.connection.takes_descriptors = False
        flags = 0 if PIPES_WORK else NO_PIPES
        self.connection.queue(pack_header(Kind.SHARED, flags=flags, meta_bytes=len(text)) + text)
        self.connection.defer(self.connection.flush)
        self._ask_to_be_told()

    def _read_pipe(self) -> None:
        if self.connection.closed:  # perhaps amid a payload whose tensor is its caller's again
            return
        if self._pipe_reads is not None:
            self._pipe_reads.read()
            self._act()

    def _read_again(self) -> None:
        """A turn was over."""
        self.connection.run(self._read_pipe_late)

    def _read_pipe_late(self) -> None:
        try:
            self._read_pipe()
        except ProtocolError as error:
            self.connection.abort(str(error))

    def _say_room(self) -> None:
        self._tell(pack_header(Kind.ROOM))
        self.connection.defer(self.connection.flush)

    def _bye(self) -> None:
        if self._pipe_reads is not None:
            self._pipe_reads.read(to_the_end=True)
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
        """Count what was read; who waits for that is told when it is much, or after a while."""
        reads, slots = self._reads, self._slot_reads
        if slots is not None and reads.num_released:
            slots.release(reads.take_released())
        if reads.released_bytes >= REPORT_BYTES:
            self._report()
        elif reads.released_bytes and not self._report_timer:
            self._report_timer = True
            self.connection.loop.call_later(REPORT_S, self._report_late)

    def _report(self) -> None:
        """Now, not after all else that has come: the peer writes on while we read that."""
        self._reads.released_bytes = 0
        slots = self._slot_reads
        if slots is not None and slots.has_released():
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
        if self._reads.released_bytes:
            self._report()

    def _redirect(self, seq: int, target: memoryview | None) -> int:
        incoming = None if self._pipe_reads is None else self._pipe_reads.find(seq)
        if incoming is None:
            return super()._redirect(seq, target)
        incoming.target = target
        return incoming.received

    # ---- the end

    def _withdraw_receives(self, withdrawn: list[Receive]) -> None:
        self._take_slots_late()
        super()._withdraw_receives(withdrawn)
        self._end_look()

    def _fail_all(self, error: Exception) -> None:
        if self._kept:
            self._take_slots_late()
        self._end_look()
        self._slot_reads, self._slots_wait = None, False
        if self._pipe_reads is not None:
            self._pipe_reads.close()
        self._pipe_reads = None
        if self._kept and not self._empty():
            logger.warning("world %s: messages of rank %d are lost: no memory", self._owner.world, self.rank)
            self._kept = False
        self._waiting.clear()
        if self._lent_reads is not None and self._peer_ring is not None:
            self._lent_reads.close()
            self._peer_ring.forget(self._peer_offsets.ring, RING_BYTES)  # what is kept keeps all of it mapped
            self._peer_ring.forget(self._peer_offsets.window, WINDOW_BYTES)
        self._peer_ring = self._lent_reads = None
        super()._fail_all(error)

"""A message stream whose large payloads travel by other means than its connection, which carries their headers.

A header that travels anyway carries a small payload with it. For a large one it says only that the payload comes
beside the connection. When it arrives, the receiver hands memory to its ``PayloadMover``, whether or not somebody waits
for the message: the tensor of the receive that it met, else a buffer. So a mover never waits for a receive that nobody
has issued, and what does not fit, or is withdrawn before its payload has begun, costs nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from torch import Tensor

from ...errors import ProtocolError
from ...wire.connection.frames import Header, Kind, pack_header
from ...wire.progress.operation import Operation
from .inbox import Arrival
from .message import FLAG_CREDITED, SIZE, Message, Receive, Send
from .message_stream import MessageStream
from .owner import StreamOwner
from .sending import EAGER_BYTES, SLOW_CANCEL_BYTES

logger = logging.getLogger(__name__)

FLAG_MOVED: Final = 4
GRACE_S: Final = 0.008  # a payload that is under way has mostly arrived before this; then nothing has to break
RELEASE_S: Final = 1.0

OnOver = Callable[[Exception | None], None]


class PayloadMover(Protocol):
    """Moves payloads to and from one peer; both sides name each by the same number. No method blocks.

    ``on_over`` is called once, not inside the call that it is given to, when the memory is no longer touched: with
    None, or with what went wrong; and again if a send that had let go of its memory fails after all.
    ``send`` and ``recv`` return False, and nothing happens, once the mover is closed.
    """

    def prepare(self) -> bool:
        """Whether it can send now. If not, it gets ready, as the peer's must; until then payloads go without it."""

    def send(self, number: int, tensors: list[Tensor], size_bytes: int, on_over: OnOver) -> bool:
        """Send tensors as one payload, each aligned as ``tensors.pack`` does it."""

    def recv(self, number: int, tensor: Tensor, on_over: OnOver) -> bool: ...

    def sent(self, number: int) -> None:
        """The peer has received that payload."""

    def copy_unsent(self, number: int) -> bool:
        """Let a send that has not begun go on from a copy of its memory.

        False if it has begun, or there is no memory for the copy: it may touch its own until it is over.
        """

    def divert(self, number: int, tensor: Tensor) -> bool:
        """Let a receive go on into other memory, into which what has come so far is copied. False if that cannot be."""

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until the mover was closed and touches no memory any more. False if that takes longer."""


class _Incoming:
    """A payload that is moving in. ``receive`` is set while it goes into a caller's tensor."""

    __slots__ = ("arrival", "cancelled", "diverted", "over", "receive", "turn")

    def __init__(self, arrival: Arrival[Receive, Message], receive: Receive | None) -> None:
        self.arrival, self.receive = arrival, receive
        self.cancelled = False
        self.diverted: Tensor | None = None  # where it goes on since it was cancelled
        self.turn = threading.Lock()  # of who diverts it, and who is told its end
        self.over = threading.Event()


class _Outgoing:
    """A payload that is moving out of a caller's tensor."""

    __slots__ = ("over", "send")

    def __init__(self, send: Send) -> None:
        self.send = send
        self.over = threading.Event()


class MovingStream(MessageStream):
    """One peer's messages in both directions; payloads of more than ``inline_bytes`` go through the mover."""

    def __init__(self, owner: StreamOwner, rank: int, mover: PayloadMover, *, inline_bytes: int) -> None:
        super().__init__(owner, rank, eager_bytes=min(EAGER_BYTES, inline_bytes))
        self._mover, self._inline_bytes = mover, inline_bytes
        self._slow_cancel_bytes = min(SLOW_CANCEL_BYTES, inline_bytes)  # the others may have to wait for the mover
        self._incoming: dict[int, _Incoming] = {}  # guarded by the connection's read side
        self._outgoing: dict[int, _Outgoing] = {}  # guarded by the issue lock
        self._undelivered: dict[int, Operation[None]] = {}  # what the peer does not have yet; likewise

    def unsent(self) -> list[Operation[None]]:
        """A leave waits until the peer has the payloads, though their sends may have ended before."""
        with self._issue_lock:
            undelivered = list(self._undelivered.values())
        return super().unsent() + undelivered

    def lost(self, reason: str) -> None:
        super().lost(reason)
        self._delivered_all()  # nobody says so any more

    @property
    def moves_beside(self) -> bool:
        with self._issue_lock:
            moves_out = bool(self._outgoing)
        return moves_out or any(incoming.receive is not None for incoming in list(self._incoming.values()))

    def abort(self, error: Exception, *, keep_arrived: bool = False) -> None:
        super().abort(error, keep_arrived=keep_arrived and not self._incoming)
        self._delivered_all()

    def _queue_message(self, send: Send, flags: int) -> None:
        if not self._moves(send.size_bytes):
            super()._queue_message(send, flags)
            return
        meta = SIZE.pack(send.size_bytes) + send.meta
        flags |= send.space | FLAG_MOVED
        header = pack_header(Kind.MESSAGE, flags=flags, meta_bytes=len(meta), tag=send.tag, seq=send.seq)
        self._move_out(send)
        self.connection.queue(header + meta)

    def _queue_payload(self, send: Send, flags: int) -> None:
        if not self._moves(send.size_bytes):
            super()._queue_payload(send, flags)
            return
        flags |= send.space | FLAG_MOVED
        self._move_out(send)
        self.connection.queue(pack_header(Kind.PAYLOAD, flags=flags, tag=send.tag, seq=send.seq))

    def _moves(self, size_bytes: int) -> bool:
        return size_bytes > self._inline_bytes and self._mover.prepare()

    def _move_out(self, send: Send) -> None:
        outgoing = self._outgoing[send.seq] = _Outgoing(send)
        if self._mover.send(send.seq, send.tensors, send.size_bytes, partial(self._moved_out, outgoing)):
            self._undelivered[send.seq] = Operation()
        else:
            del self._outgoing[send.seq]

    def _delivered(self, number: int) -> None:
        self._mover.sent(number)
        with self._issue_lock:
            undelivered = self._undelivered.pop(number, None)
        if undelivered is not None:
            undelivered.succeed(None)

    def _delivered_all(self) -> None:
        with self._issue_lock:
            undelivered, self._undelivered = self._undelivered, {}
        for each in undelivered.values():
            each.succeed(None)

    def _moved_out(self, outgoing: _Outgoing, error: Exception | None) -> None:
        send = outgoing.send
        with self._issue_lock:
            was_over = self._outgoing.pop(send.seq, None) is None
            broken_by = self._error
            is_lost = was_over and broken_by is None and send.seq in self._undelivered
            if error is None or broken_by is not None:
                self._unsent.discard(send)
        outgoing.over.set()
        if was_over:
            if is_lost:  # the send has ended, but its peer would wait for the rest for ever
                self._owner.stream_lost(self.rank, str(error))
        elif error is None:
            send.operation.succeed(None)
        elif broken_by is not None:
            send.operation.fail(broken_by)
        else:  # the world will break, and fail it then
            self._owner.stream_lost(self.rank, str(error))

    def _cancel_send(self, send: Send) -> None:
        super()._cancel_send(send)
        with self._issue_lock:
            outgoing = self._outgoing.get(send.seq)
        if outgoing is not None and not self._mover.copy_unsent(send.seq):
            self._await_end(outgoing.over, "send")

    def take_whole(self, header: Header, meta: bytes, payload: memoryview) -> bool:
        return False  # it may be for memory that only the mover can write to

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if not header.flags & FLAG_MOVED:
            self._moves(header.payload_bytes)  # the peer gets ready, for which it needs us
            return super().begin(header, meta)
        arrival: Arrival[Receive, Message] | None = None
        if header.kind == Kind.MESSAGE:
            arrival = self._moved_message(header, meta)
        elif header.kind == Kind.PAYLOAD:
            arrival = self._inbox.begin(header.seq, eager=not header.flags & FLAG_CREDITED)
        if arrival is None or header.payload_bytes:
            raise ProtocolError(f"message {header.seq} moves beside the connection, but was not announced so")
        self._move_in(header.seq, arrival)
        self._act()
        return None

    def end(self, header: Header, meta: bytes) -> None:
        if header.kind == Kind.MOVED:
            self.connection.defer(partial(self._delivered, header.seq))
        elif not header.flags & FLAG_MOVED:
            super().end(header, meta)

    def _moved_message(self, header: Header, meta: bytes) -> Arrival[Receive, Message]:
        if len(meta) < SIZE.size:
            raise ProtocolError("a message that moves beside the connection came without a size")
        (size_bytes,) = SIZE.unpack_from(meta)
        return self._arrive(header, meta[SIZE.size :], size_bytes, eager=False, transferring=True)

    def _move_in(self, number: int, arrival: Arrival[Receive, Message]) -> None:
        if arrival.dropped:  # the sender waits until its payload has moved: take it all the same
            arrival.message.buffer = self._allocate(arrival.size_bytes)
        else:
            self._destination(arrival)
        receive = None if arrival.posted is None or arrival.message.buffer is not None else arrival.posted.receive
        target = arrival.message.buffer if receive is None else receive.tensor
        assert target is not None
        incoming = self._incoming[number] = _Incoming(arrival, receive)
        if not self._mover.recv(number, target, partial(self._moved_in, incoming)):
            del self._incoming[number]

    def _moved_in(self, incoming: _Incoming, error: Exception | None) -> None:
        with incoming.turn:
            pass  # whether it was diverted is known from here on
        self.connection.run(partial(self._end_move, incoming, error))

    def _end_move(self, incoming: _Incoming, error: Exception | None) -> None:
        arrival, receive = incoming.arrival, incoming.receive
        del self._incoming[arrival.seq]
        if self._error is not None and not self._kept:
            if receive is not None:
                self.connection.defer(partial(receive.operation.fail, self._error))
        elif error is not None:  # the world will break, and fail the receive then
            self.connection.defer(partial(self._owner.stream_lost, self.rank, str(error)))
        else:
            if incoming.diverted is not None:
                arrival.message.buffer = incoming.diverted
            elif incoming.cancelled:
                assert receive is not None
                assert receive.tensor is not None
                arrival.message.buffer = self._allocate(arrival.size_bytes)
                self._fill(arrival.message.buffer, receive.tensor)
            self._complete(arrival.seq)
            self.connection.queue(pack_header(Kind.MOVED, seq=arrival.seq))
            self.connection.defer(self.connection.flush)  # perhaps with the credit of the next receive
        incoming.over.set()
        if self.said_bye and not self._incoming:
            self.connection.defer(self._answer_bye)
        self._act()

    def _cancel_receive(self, receive: Receive) -> None:
        found: list[_Incoming] = []
        self.connection.run_and_wait(partial(self._detach_moving, receive, found))
        if not found:
            self._copy_taken(receive)
        elif not self._divert_moving(found[0]):
            self._await_end(found[0].over, "recv")

    def _divert_moving(self, incoming: _Incoming) -> bool:
        arrival = incoming.arrival
        try:
            buffer = self._allocate(arrival.size_bytes)
        except ProtocolError:
            return False
        with incoming.turn:
            if self._mover.divert(arrival.seq, buffer):
                incoming.diverted = buffer
        return incoming.diverted is not None

    def _detach_moving(self, receive: Receive, found: list[_Incoming]) -> None:
        for incoming in self._incoming.values():
            if incoming.receive is receive:
                incoming.cancelled = True  # the message is copied out of the tensor, and waits for another receive
                found.append(incoming)
            elif incoming.arrival.posted is None or incoming.arrival.posted.receive is not receive:
                continue
            # What it gives up moves beside the connection, so there is nothing to divert there.
            self._inbox.withdraw_receive(receive)
            self._act()
            return
        self._detach(receive)

    def _await_end(self, over: threading.Event, name: str) -> None:
        """A payload cannot be stopped on its own: wait a moment for its end, else break the world, which stops it."""
        if self._error is None:
            if over.wait(GRACE_S):
                return
            self._owner.stream_stuck(self.rank, name)
        if not self._mover.wait_closed(RELEASE_S):
            logger.error("world %s: a cancelled %s may still touch its tensor", self._owner.world, name)

    def _bye(self) -> None:
        if self._incoming:  # answered when all is here
            self.said_bye = True
        else:
            super()._bye()

    def _fail_all(self, error: Exception) -> None:
        """What is moving fails when the mover has let go of its memory."""
        with self._issue_lock:
            self._unsent -= {outgoing.send for outgoing in self._outgoing.values()}
        for incoming in self._incoming.values():
            if incoming.receive is not None and not incoming.cancelled:
                incoming.arrival.posted = None
        super()._fail_all(error)

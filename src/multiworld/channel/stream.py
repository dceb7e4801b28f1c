"""Messages to and from one peer over one connection: headers are matched, payloads go straight into place."""

from __future__ import annotations

import logging
import struct
import threading
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import CollectiveMismatchError, ProtocolError, TensorMismatchError
from ..wire.connection import Connection
from ..wire.copying import copy_into
from ..wire.frames import Header, Kind, pack_header
from ..wire.operation import Operation, settler
from .base import Payload
from .inbox import Arrival, Inbox, Posted
from .outbox import WINDOW_BYTES, Outbox, Route
from .ring import Piece
from .tensors import describe_text, memory_of, parse_layout

__all__ = [
    "COLLECTIVE",
    "PAYLOAD_KINDS",
    "SLOW_CANCEL_BYTES",
    "USER",
    "Message",
    "MessageStream",
    "Receive",
    "Send",
    "StreamOwner",
]

logger = logging.getLogger(__name__)

USER, COLLECTIVE = 0, 1  # two spaces of tags
FLAG_COLLECTIVE, FLAG_CREDITED, FLAG_ASKED = 1, 2, 8
EAGER_BYTES = 512 * 1024
REPORT_BYTES = WINDOW_BYTES // 4  # what is consumed of the window before the sender hears of it
SMALL_BYTES = 16 * 1024  # worth copying into one write with its header
SLOW_CANCEL_BYTES = 1024 * 1024  # what cancelling may have to copy and would stall an event loop with
SIZE = struct.Struct("<Q")
MESSAGE = int(Kind.MESSAGE)
PAYLOAD_KINDS = frozenset((int(Kind.MESSAGE), int(Kind.PAYLOAD)))


class StreamOwner:
    """What a stream tells its channel. All are called with nothing held. This one does nothing."""

    def __init__(self, world: str, generation: int) -> None:
        self.world, self.generation = world, generation

    def stream_lost(self, rank: int, reason: str) -> None:
        """The connection ended without a BYE."""

    def stream_asked(self, rank: int, seq: int, signature: bytes) -> None:
        """The peer waits in the collective of that number, which is ``signature`` there."""

    def stream_stuck(self, rank: int, name: str) -> None:
        """A cancelled operation of that name can be stopped only by breaking the world (a ``MovingStream``)."""

    @property
    def wants_any(self) -> bool:
        """Whether a receive from any rank waits."""
        return False

    def take_any(self, rank: int, key: int) -> Receive | None:
        """Return a receive from any rank for a message of this one; it is that stream's from now on.

        Called with the read side held.
        """
        return None


class Message:
    """What came: its description, and the buffer that it waits in if no receive was there."""

    __slots__ = ("buffer", "meta", "piece", "size_bytes", "space")

    def __init__(self, meta: bytes, size_bytes: int, space: int) -> None:
        self.meta, self.size_bytes, self.space = meta, size_bytes, space
        self.buffer: Tensor | None = None
        self.piece: Piece | None = None  # of the peer's ring, that it lies in (a ``SharedStream``)


class Taken:
    """What a receive had taken of its message when it was cancelled: it goes on into a buffer, and is copied there."""

    __slots__ = ("copied", "seq", "source", "target", "turn")

    def __init__(self, seq: int, target: memoryview, source: memoryview) -> None:
        self.seq, self.target, self.source = seq, target, source
        self.turn = threading.Lock()  # for ever of the first of those who cancel at once
        self.copied = threading.Event()


class Receive:
    """A receive that the caller waits for. ``tensor`` None: any payload.

    ``source`` is the rank that a receive from any rank has got its message from, and then its result.
    """

    __slots__ = ("meta", "operation", "source", "space", "taken", "tensor", "view")

    def __init__(self, operation: Operation[object], space: int, meta: bytes | None, tensor: Tensor | None) -> None:
        self.operation, self.space, self.meta, self.tensor = operation, space, meta, tensor
        self.view = None if tensor is None else memory_of(tensor)
        self.taken: Taken | None = None
        self.source: int | None = None


class Send:
    """A message that the caller waits to have sent; it keeps the memory of the segments alive."""

    __slots__ = ("meta", "operation", "segments", "seq", "size_bytes", "space", "tag", "tensors")

    def __init__(self, space: int, tag: int, meta: bytes, segments: list[memoryview], tensors: list[Tensor]) -> None:
        self.space, self.tag, self.meta, self.segments, self.tensors = space, tag, meta, segments, tensors
        self.size_bytes = sum(map(len, segments))
        self.seq = 0
        self.operation: Operation[None] = Operation()


_SENT: Operation[None] = Operation.succeeded(None)


def _fits(receive: Receive, message: Message) -> bool:
    if receive.meta is None:
        return True
    return receive.meta == message.meta and (receive.view is None or len(receive.view) == message.size_bytes)


def _takes_whole(receive: Receive, message: Message) -> bool:
    return receive.meta == message.meta and receive.view is not None and len(receive.view) == message.size_bytes


class MessageStream:
    """One peer's messages in both directions; a connection sink."""

    def __init__(self, owner: StreamOwner, rank: int, *, eager_bytes: int = EAGER_BYTES) -> None:
        self.rank = rank
        self.said_bye = False
        self.bytes_sent = self.bytes_received = self.messages_sent = self.messages_received = 0
        self._owner = owner
        self._eager_bytes = eager_bytes
        self._slow_cancel_bytes = SLOW_CANCEL_BYTES
        self._connection: Connection | None = None
        self._inbox: Inbox[Receive, Message] = Inbox(_fits)
        self._outbox: Outbox[Send] = Outbox(eager_bytes=eager_bytes)
        self._issue_lock = threading.Lock()  # numbers and queue order must agree
        self._unsent: set[Send] = set()
        self._num_unsaid = 0  # frames that wait elsewhere than in the connection: none may overtake them
        self._copying: dict[int, bool] = {}  # by message: whether the payload has ended; guarded by the read side
        self._error: Exception | None = None
        self._kept = False  # the error was a graceful leave: what has arrived can still be received
        self._drained: Operation[None] = Operation()
        self._ended: Operation[None] = Operation()

    # ---- the channel's side

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        connection.is_awaited, connection.is_receiving = self._is_awaited, self._is_receiving
        connection.parser.take_whole = self.take_whole
        if self._error is not None:
            connection.abort("aborted before it was open")

    @property
    def drained(self) -> Operation[None]:
        """Done when all that the peer ever sent has arrived."""
        return self._drained

    @property
    def slow_cancel_bytes(self) -> int:
        """Cancelling an operation of more bytes than this may take long."""
        return self._slow_cancel_bytes

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "stream used before it was connected"
        return self._connection

    def send(
        self, space: int, tag: int, meta: bytes, segments: list[memoryview], tensors: list[Tensor]
    ) -> Operation[None]:
        """Send a message; done when its memory may change. ``tensors`` own the memory of the segments."""
        if len(segments) == len(tensors) == 1 and self._send_at_once(space, tag, meta, tensors[0]):
            return _SENT
        return self._send(space, tag, meta, segments, tensors)

    def send_tensor(self, space: int, tag: int, meta: bytes, tensor: Tensor) -> Operation[None]:
        """As ``send``, of the memory of one contiguous tensor."""
        if self._send_at_once(space, tag, meta, tensor):
            return _SENT
        return self._send(space, tag, meta, [memory_of(tensor)], [tensor])

    def _send(
        self, space: int, tag: int, meta: bytes, segments: list[memoryview], tensors: list[Tensor]
    ) -> Operation[None]:
        send = Send(space, tag, meta, segments, tensors)
        send.operation.on_cancel = partial(self._cancel_send, send)
        send.operation.slow_cancel = send.size_bytes > self._slow_cancel_bytes
        with self._issue_lock:
            if self._error is not None:
                send.operation.fail(self._error)
                return send.operation
            self._unsent.add(send)
            self._issue(send)
        self.messages_sent += 1
        self.bytes_sent += send.size_bytes
        self.connection.flush()
        return send.operation

    def _issue(self, send: Send) -> None:
        """With the issue lock held: number a message and queue what goes of it now."""
        try:
            send.seq, route = self._outbox.issue(key_of(send.space, send.tag), send.size_bytes, send)
            if route is Route.ANNOUNCED:
                self._queue_announcement(send)
            else:
                self._queue_message(send, FLAG_CREDITED if route is Route.CREDITED else 0)
        except BaseException:  # an interrupt: it may have a number that the peer was not told of, and must not hear of
            self.connection.abort("interrupted while sending")
            raise

    def _send_at_once(self, space: int, tag: int, meta: bytes, tensor: Tensor) -> bool:
        """Write a small message whole, here and now. False: it has to go the usual way."""
        size_bytes = tensor.nbytes
        if size_bytes > SMALL_BYTES:
            return False
        with self._issue_lock:
            connection = self._connection
            if self._error is not None or connection is None or connection.closed:
                return False
            if connection.num_queued or self._num_unsaid:
                return False
            if not self._outbox.allows_eager(size_bytes):
                return False
            try:
                seq = self._number_eager(size_bytes)
                header = pack_header(
                    MESSAGE, flags=space, meta_bytes=len(meta), payload_bytes=size_bytes, tag=tag, seq=seq
                )
                frame = b"".join((header, meta, memory_of(tensor)))
                if not connection.send_now(frame):
                    connection.queue(frame)
            except BaseException:  # an interrupt: it has a number that the peer was perhaps not told of
                connection.abort("interrupted while sending")
                raise
        connection.flush()
        self.messages_sent += 1
        self.bytes_sent += size_bytes
        return True

    def _number_eager(self, size_bytes: int) -> int:
        """With the issue lock held: return the number of a small message that goes by a frame, now."""
        return self._outbox.issue_eager(size_bytes)

    def recv(self, space: int, tag: int, meta: bytes | None, tensor: Tensor | None) -> Operation[Payload]:
        """Receive into ``tensor``, whose description ``meta`` must equal the message's; both None: any payload."""
        key = key_of(space, tag)
        if tensor is not None and self._comes_at_once(key, tensor.nbytes):
            assert meta is not None
            received = self.connection.run_now(partial(self._receive_at_once, key, meta, tensor))
            if received is not None:
                return received
        operation: Operation[Payload] = Operation()
        receive = Receive(operation, space, meta, tensor)  # type: ignore[arg-type]
        operation.on_cancel = partial(self._cancel_receive, receive)
        operation.slow_cancel = receive.view is not None and len(receive.view) > self._slow_cancel_bytes
        self.connection.run(partial(self._post, receive, key))
        return operation

    def offer(self, key: int) -> Operation[None]:
        """Let receives from any rank have what waits here; done when that has been seen to."""
        seen: Operation[None] = Operation()

        def see() -> None:
            self._offered(key)
            self.connection.defer(settler(seen))

        self.connection.run(see)
        return seen

    def detach(self, receive: Receive) -> None:
        """A receive from any rank that this stream has taken is cancelled: its memory is left alone afterwards."""
        self._cancel_receive(receive)

    def give_up(self, tag: int) -> None:
        """A collective failed here: reject what the peer still sends for it, and tell it that nothing more comes."""
        self.connection.run(partial(self._forget, tag))

    def disagree(self, seq: int, signature: bytes, *, asking: bool) -> None:
        """Say what a collective is here: to ask whether it is the same there, or because it is not."""
        flags = COLLECTIVE | (FLAG_ASKED if asking else 0)
        self.connection.send(pack_header(Kind.REJECT, flags=flags, meta_bytes=len(signature), tag=seq) + signature)

    def has_complete(self, tag: int) -> bool:
        return self._inbox.has_complete(key_of(USER, tag))

    def queue_depths(self) -> tuple[int, int, int]:
        """Return how many receives wait, messages wait, sends wait."""
        return self._inbox.num_posted, self._inbox.num_arrived, len(self._unsent)

    def _is_awaited(self) -> bool:
        return bool(self._unsent) or self._is_receiving()

    def _is_receiving(self) -> bool:
        return self._inbox.has_receives or self._owner.wants_any

    def finish(self) -> Operation[None]:
        """Say BYE behind all that was sent; done when the peer has read everything and closed its side."""
        if not self._ended.done and self._connection is not None:
            self.connection.queue(pack_header(Kind.BYE))
            self.connection.finish_writing(lambda: None)
        return self._ended

    def unsent(self) -> list[Operation[None]]:
        with self._issue_lock:
            return [send.operation for send in list(self._unsent)]  # others discard from it without the lock

    def abort(self, error: Exception, *, keep_arrived: bool = False) -> None:
        """Fail everything, close the connection. Any thread; nothing of the caller's is written afterwards."""
        with self._issue_lock:
            if self._error is not None and not self._kept:
                return
            self._error, self._kept = error, keep_arrived
        if self._connection is not None:
            self._connection.abort(f"aborted: {type(error).__name__}")
            self._connection.run(partial(self._fail_all, error))
        self._drained.succeed(None)
        self._ended.succeed(None)
        if not keep_arrived:  # the owner refers to us, and nothing need wait for the garbage collector
            self._owner = StreamOwner(self._owner.world, self._owner.generation)

    # ---- the connection's side: the read side is held

    def take_whole(self, header: Header, meta: bytes, payload: memoryview) -> bool:
        """A frame is here with its payload. False: it has to go the usual way.

        Most messages come like this to those who wait for them, and this is half as long.
        """
        message = Message(meta, len(payload), header.flags & FLAG_COLLECTIVE)
        receive = self._meet_complete(header, message)
        if receive is None or receive.view is None:
            return False
        receive.view[:] = payload
        self._received(receive, header, message)
        self._act()
        return True

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.kind in PAYLOAD_KINDS:
            arrival = self._begin_payload(header, meta, header.payload_bytes)
            target = None if arrival.dropped else self._destination(arrival)
            self._act()
            return target
        if header.payload_bytes:
            raise ProtocolError(f"frame kind {header.kind} with a payload")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        kind = header.kind
        if kind in PAYLOAD_KINDS:
            self._all_came(header.seq)
        elif kind == Kind.ANNOUNCE:
            self._announced(header, meta)
        elif kind == Kind.CREDIT:
            self._credited(key_of(header.flags & FLAG_COLLECTIVE, header.tag))
        elif kind == Kind.WINDOW:
            self._consumed(header.seq)
        elif kind == Kind.WITHDRAW:
            arrival = self._inbox.withdraw_message(header.seq)
            if arrival is not None and arrival.complete:
                self._arrived(arrival)
        elif kind == Kind.RECALL:
            self._recalled(header)
        elif kind == Kind.RETURNED:
            self._inbox.returned(key_of(header.flags & FLAG_COLLECTIVE, header.tag), header.seq)
        elif kind == Kind.REJECT and header.seq:
            self._rejected(header.seq, meta)
        elif kind == Kind.REJECT and header.flags & FLAG_ASKED:
            self.connection.defer(partial(self._owner.stream_asked, self.rank, header.tag, meta))
        elif kind == Kind.REJECT:
            self._abandoned(key_of(header.flags & FLAG_COLLECTIVE, header.tag), meta)
        elif kind == Kind.BYE:
            self._bye()
        else:
            raise ProtocolError(f"frame kind {kind} on a data connection")
        self._act()

    def lost(self, reason: str) -> None:
        self._drained.succeed(None)
        self._ended.succeed(None)
        if not self.said_bye and self._error is None:
            self._owner.stream_lost(self.rank, reason)

    # ---- sending

    def _queue_message(self, send: Send, flags: int) -> None:
        header = pack_header(
            Kind.MESSAGE,
            flags=flags | send.space,
            meta_bytes=len(send.meta),
            payload_bytes=send.size_bytes,
            tag=send.tag,
            seq=send.seq,
        )
        self._queue(header + send.meta, send)

    def _queue_announcement(self, send: Send) -> None:
        meta = SIZE.pack(send.size_bytes) + send.meta
        header = pack_header(Kind.ANNOUNCE, flags=send.space, meta_bytes=len(meta), tag=send.tag, seq=send.seq)
        self._queue(header + meta)

    def _queue_payload(self, send: Send, flags: int) -> None:
        flags |= send.space
        header = pack_header(Kind.PAYLOAD, flags=flags, payload_bytes=send.size_bytes, tag=send.tag, seq=send.seq)
        self._queue(header, send)

    def _queue_withdrawal(self, send: Send) -> None:
        self._queue(pack_header(Kind.WITHDRAW, flags=send.space, tag=send.tag, seq=send.seq))

    def _queue(self, frame: bytes, send: Send | None = None) -> None:
        """Queue the beginning of a frame and the payload of a send, if there is one, behind all that was queued."""
        if send is None:
            self.connection.queue(frame)
        else:
            self.connection.queue(frame, *send.segments, on_sent=partial(self._sent, send))

    def _sent(self, send: Send) -> None:
        self._unsent.discard(send)
        send.operation.succeed(None)

    def _credited(self, key: int) -> None:
        with self._issue_lock:
            send = self._outbox.credit(key)
            if send is not None:
                self._queue_payload(send, FLAG_CREDITED)
        self.connection.defer(self.connection.flush)

    def _consumed(self, size_bytes: int) -> None:
        with self._issue_lock:
            for send in self._outbox.consumed(size_bytes):
                self._queue_payload(send, 0)
        self.connection.defer(self.connection.flush)

    def _recalled(self, header: Header) -> None:
        with self._issue_lock:
            num_credits = self._outbox.recall(key_of(header.flags & FLAG_COLLECTIVE, header.tag))
            self.connection.queue(pack_header(Kind.RETURNED, flags=header.flags, tag=header.tag, seq=num_credits))
        self.connection.defer(self.connection.flush)

    def _rejected(self, seq: int, meta: bytes) -> None:
        with self._issue_lock:
            send = self._outbox.withdraw(seq)
            if send is not None:
                self._queue_withdrawal(send)
        if send is not None:
            self._unsent.discard(send)
            error = self._mismatch(COLLECTIVE, send.meta, meta)
            self.connection.defer(partial(fail, send.operation, error))
            self.connection.defer(self.connection.flush)

    def _cancel_send(self, send: Send) -> None:
        """Afterwards the caller's memory is no longer read: the message is taken back, or its rest copied."""
        with self._issue_lock:
            withdrawn = self._outbox.withdraw(send.seq)
            if withdrawn is not None:
                self._queue_withdrawal(send)
        self._unsent.discard(send)
        if withdrawn is None:
            self._detach_send(send)
        self.connection.flush()

    def _detach_send(self, send: Send) -> None:
        """Let the payload of a send that is under way, or has gone, go on from a copy."""
        self.connection.detach_unsent(send)

    # ---- receiving

    def _comes_at_once(self, key: int, size_bytes: int) -> bool:
        """Whether a receive of so many bytes may have its message at once. Called with nothing held."""
        return self._inbox.has_complete(key)

    def _receive_at_once(self, key: int, meta: bytes, tensor: Tensor) -> Operation[Any] | None:
        """Receive a message that is here and complete. None: it has to go the usual way."""
        if self._error is not None:
            return None
        arrival = self._inbox.take_complete(
            key, lambda message: message.meta == meta and message.size_bytes == tensor.nbytes
        )
        if arrival is None:
            return None
        self._hand_out(arrival.message, tensor)
        self._act()
        return Operation.succeeded(None, partial(self._give_back, key, arrival.seq, arrival.message, tensor))

    def _post(self, receive: Receive, key: int) -> bool:
        """A receive is issued. Return whether it waits for a message."""
        if self._error is not None and not (self._kept and self._inbox.has_complete(key)):
            self.connection.defer(partial(fail, receive.operation, self._error))
            return False
        if receive.operation.done:  # cancelled before its turn came
            return False
        if self._inbox.is_abandoned(key):
            self._fail_abandoned(receive)
            return False
        large = receive.tensor is None or receive.view is None or len(receive.view) > self._eager_bytes
        met = self._inbox.post(key, receive, large=large)
        if isinstance(met, Arrival) and met.complete:
            self._arrived(met)
        self._act()
        return isinstance(met, Posted)

    def _arrive(
        self, header: Header, meta: bytes, size_bytes: int, *, eager: bool, transferring: bool
    ) -> Arrival[Receive, Message]:
        """A message is announced or begins: ``meta`` describes its payload of so many bytes."""
        space = header.flags & FLAG_COLLECTIVE
        message = Message(meta, size_bytes, space)
        key = key_of(space, header.tag)
        arrival = self._inbox.arrive(key, header.seq, message, size_bytes, eager=eager, transferring=transferring)
        if arrival.posted is None and not arrival.dropped and space == USER:
            self._serve_any(key)  # now, so that the payload is read into place
        return arrival

    def _meet_complete(self, header: Header, message: Message) -> Receive | None:
        """A frame and its payload are here. Return the receive that takes that into its memory, if it is so simple."""
        if not is_eager(header):
            return None
        key = key_of(message.space, header.tag)
        return self._inbox.arrive_complete(key, header.seq, message, message.size_bytes, _takes_whole)

    def _received(self, receive: Receive, header: Header, message: Message) -> None:
        """A message that was complete is in the memory of its receive."""
        self.messages_received += 1
        self.bytes_received += message.size_bytes
        self._hand_over(receive, key_of(message.space, header.tag), header.seq, message, receive.source)

    def _begin_payload(self, header: Header, meta: bytes, size_bytes: int) -> Arrival[Receive, Message]:
        """The payload of a message begins, with its header or behind its announcement."""
        eager = not header.flags & FLAG_CREDITED
        if header.kind == Kind.MESSAGE:
            return self._arrive(header, meta, size_bytes, eager=eager, transferring=True)
        arrival = self._inbox.begin(header.seq, eager=eager)
        if arrival is None or arrival.size_bytes != size_bytes:
            raise ProtocolError(f"payload of message {header.seq}, which was not announced so")
        return arrival

    def _serve_any(self, key: int) -> None:
        """Give the messages that wait on a tag to the receives from any rank, if there are some."""
        while self._inbox.has_unmet(key) and (self._error is None or (self._kept and self._inbox.has_complete(key))):
            receive = self._owner.take_any(self.rank, key)
            if receive is None:
                return
            self._post(receive, key)

    def _offered(self, key: int) -> None:
        """A receive from any rank waits for a message with this key."""
        self._serve_any(key)

    def _announced(self, header: Header, meta: bytes) -> None:
        if len(meta) < SIZE.size:
            raise ProtocolError("an announcement without a size")
        (size_bytes,) = SIZE.unpack_from(meta)
        arrival = self._arrive(header, meta[SIZE.size :], size_bytes, eager=False, transferring=False)
        if arrival.dropped:
            self._reject(header.seq)

    def _forget(self, tag: int) -> None:
        for seq in self._inbox.forget(key_of(COLLECTIVE, tag)):
            self._reject(seq)
        self.connection.queue(pack_header(Kind.REJECT, flags=COLLECTIVE, tag=tag))  # no message has the number 0
        self.connection.defer(self.connection.flush)
        self._act()

    def _abandoned(self, key: int, meta: bytes) -> None:
        """The peer gave a collective up, or called another one: who waits for a message of it would wait for ever."""
        for receive in self._inbox.abandon(key):
            self._fail_abandoned(receive, meta)

    def _fail_abandoned(self, receive: Receive, meta: bytes = b"") -> None:
        error = self._mismatch(receive.space, receive.meta or b"", meta)
        self.connection.defer(partial(fail, receive.operation, error))

    def _reject(self, seq: int) -> None:
        self.connection.queue(pack_header(Kind.REJECT, seq=seq))
        self.connection.defer(self.connection.flush)

    def _all_came(self, seq: int) -> None:
        """The last byte of a payload is in its place, but for what is still being copied there."""
        if seq in self._copying:
            self._copying[seq] = True
        else:
            self._complete(seq)

    def _complete(self, seq: int) -> None:
        arrival = self._inbox.complete(seq)
        if arrival is not None:
            self.messages_received += 1
            self.bytes_received += arrival.size_bytes
            self._arrived(arrival)

    def _destination(self, arrival: Arrival[Receive, Message]) -> memoryview | None:
        """Return where a payload goes: the caller's tensor, or a buffer if nobody waits or the sender sets the form."""
        message = arrival.message
        receive = None if arrival.posted is None else arrival.posted.receive
        if receive is not None and receive.view is not None:
            return receive.view if message.size_bytes else None
        check_form(message)  # before it takes memory
        message.buffer = self._allocate(message.size_bytes)
        return memory_of(message.buffer) if message.size_bytes else None

    def _arrived(self, arrival: Arrival[Receive, Message]) -> None:
        if arrival.posted is None:
            return
        receive, message = arrival.posted.receive, arrival.message
        value: object = receive.source
        if receive.tensor is None:
            value = parse_layout(message.meta, message.size_bytes).build(self._buffer_of(message))
        else:
            self._hand_out(message, receive.tensor)
        self._hand_over(receive, arrival.tag, arrival.seq, message, value)

    def _hand_over(self, receive: Receive, key: int, seq: int, message: Message, value: object) -> None:
        operation = receive.operation
        if message.space == USER:
            operation.on_undo = partial(self._give_back, key, seq, message, receive.tensor)
            operation.settle(value)  # nobody else gets it any more: a cancel that comes now is too late
            self.connection.defer(operation.tell)
        else:
            self.connection.defer(partial(_succeed, operation, value))

    def _buffer_of(self, message: Message) -> Tensor:
        """Return the bytes of a message that waited, or that came for a receive of any payload."""
        assert message.buffer is not None or not message.size_bytes
        return message.buffer if message.buffer is not None else self._allocate(0)

    def _hand_out(self, message: Message, tensor: Tensor) -> None:
        """Let a complete message be in the tensor of its receive."""
        if message.buffer is not None and message.size_bytes:
            self._fill(tensor, message.buffer)

    def _give_back(self, key: int, seq: int, message: Message, tensor: Tensor | None) -> None:
        """Nobody has heard that this message was received: let it wait for the next receive."""
        if message.buffer is None and tensor is not None and message.size_bytes:
            message.buffer = self._allocate(message.size_bytes)
            self._fill(message.buffer, tensor)
        self.connection.run_and_wait(partial(self._put_back, key, seq, message))

    def _put_back(self, key: int, seq: int, message: Message) -> None:
        if self._error is None or self._kept:
            met = self._inbox.put_back(key, seq, message, message.size_bytes)
            if met is not None:
                self._arrived(met)
            else:
                self._serve_any(key)
            self._act()

    def _allocate(self, size_bytes: int) -> Tensor:
        """Return memory for a message that nobody has given any for, ``[size_bytes]`` uint8."""
        try:
            return torch.empty(size_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            raise ProtocolError(f"no memory for a message of {size_bytes} bytes: {error}") from error

    def _fill(self, target: Tensor, source: Tensor) -> None:
        """Copy the bytes of one tensor into another of the same size."""
        copy_into(memory_of(target), memory_of(source))

    def _cancel_receive(self, receive: Receive) -> None:
        self.connection.run_and_wait(partial(self._detach, receive))
        self._copy_taken(receive)

    def _copy_taken(self, receive: Receive) -> None:
        """Not with the read side held: it may be much, and the progress thread would wait."""
        taken = receive.taken
        if taken is None:
            return
        if taken.turn.acquire(blocking=False):
            copy_into(taken.target, taken.source)
            taken.copied.set()
            self.connection.run(partial(self._taken_copied, taken.seq))
        else:
            taken.copied.wait()

    def _taken_copied(self, seq: int) -> None:
        if self._copying.pop(seq):
            self._complete(seq)
            self._act()

    def _detach(self, receive: Receive) -> None:
        """Take the receive out; a payload that is coming into its tensor goes on into a buffer of ours."""
        arrival = self._inbox.withdraw_receive(receive)
        if arrival is not None and arrival.transferring and not arrival.complete and arrival.message.buffer is None:
            self._divert(arrival, receive)
        self._act()

    def _divert(self, arrival: Arrival[Receive, Message], receive: Receive) -> None:
        message = arrival.message
        try:
            message.buffer = self._allocate(message.size_bytes)
        except ProtocolError as error:
            self.connection.abort(str(error))
            return
        target = memory_of(message.buffer)
        received = self._redirect(arrival.seq, target)
        if receive.view is not None and received:
            receive.taken = Taken(arrival.seq, target[:received], receive.view[:received])
            self._copying[arrival.seq] = False

    def _redirect(self, seq: int, target: memoryview) -> int:
        """Let the rest of a payload that is coming go elsewhere. Return how much of it has come."""
        parser = self.connection.parser
        parser.redirect(target)
        return parser.received_bytes

    def _act(self) -> None:
        """Carry out what the inbox decided."""
        inbox = self._inbox
        if inbox.parted:
            parted, inbox.parted = inbox.parted, []
            for key in parted:
                self._serve_any(key)
        if inbox.credits_to_give:
            for key in inbox.credits_to_give:
                self.connection.queue(pack_header(Kind.CREDIT, flags=key & 1, tag=key >> 1))
            inbox.credits_to_give.clear()
            self.connection.defer(self.connection.flush)
        if inbox.credits_to_recall:
            for key in inbox.credits_to_recall:
                self.connection.queue(pack_header(Kind.RECALL, flags=key & 1, tag=key >> 1))
            inbox.credits_to_recall.clear()
            self.connection.defer(self.connection.flush)
        if inbox.mismatches:
            for mismatch in inbox.mismatches:
                error = self._mismatch(mismatch.receive.space, mismatch.receive.meta or b"", mismatch.message.meta)
                self.connection.defer(partial(fail, mismatch.receive.operation, error))
            inbox.mismatches.clear()
        if inbox.consumed_bytes >= REPORT_BYTES:
            self._say_consumed(inbox.take_consumed())

    def _say_consumed(self, size_bytes: int) -> None:
        """Tell the peer that so many bytes have left the window."""
        self.connection.queue(pack_header(Kind.WINDOW, seq=size_bytes))
        self.connection.defer(self.connection.flush)

    def differs(self, signature: bytes, theirs: bytes) -> Exception:
        """Return the error of a collective that is another one at the peer, or (empty) that it gave up."""
        return self._mismatch(COLLECTIVE, signature, theirs)

    def _mismatch(self, space: int, expected: bytes, actual: bytes) -> Exception:
        owner = self._owner
        if space == COLLECTIVE:
            texts = [text.decode(errors="replace") or "nothing (it gave up)" for text in (expected, actual)]
            return CollectiveMismatchError(owner.world, owner.generation, self.rank, *texts)
        return TensorMismatchError(
            owner.world,
            owner.generation,
            self.rank,
            describe_text(expected) if expected else "any payload",
            describe_text(actual),
        )

    def _bye(self) -> None:
        self.said_bye = True
        self.connection.defer(self._answer_bye)

    def _answer_bye(self) -> None:
        self._drained.succeed(None)
        self.connection.finish_writing(lambda: None)

    def _fail_all(self, error: Exception) -> None:
        receives = self._inbox.receives()
        for receive in receives if self._kept else ():
            self._inbox.withdraw_receive(receive)
        if not self._kept:
            self._inbox = Inbox(_fits)
        for receive in receives:
            receive.operation.on_cancel = None
            self.connection.defer(partial(fail, receive.operation, error))
        with self._issue_lock:
            sends, self._unsent = self._unsent, set()
            self._outbox = Outbox(eager_bytes=self._eager_bytes)  # a broken world may stay for long, its tensors not
        for send in sends:
            send.operation.on_cancel = None
            self.connection.defer(partial(fail, send.operation, error))


def key_of(space: int, tag: int) -> int:
    return tag << 1 | space


def is_eager(header: Header) -> bool:
    """Whether a frame brings a message of which nothing was said before, within the window."""
    return header.kind == MESSAGE and not header.flags & FLAG_CREDITED


def check_form(message: Message) -> None:
    """Raise ProtocolError for what could not be rebuilt."""
    if message.space == USER:
        parse_layout(message.meta, message.size_bytes)


def fail(operation: Operation[Any], error: Exception) -> None:
    operation.fail(error)


def _succeed(operation: Operation[Any], value: object) -> None:
    operation.succeed(value)

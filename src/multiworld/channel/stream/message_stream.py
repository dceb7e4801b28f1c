"""Messages to and from one peer over one connection: headers are matched, payloads go straight into place."""

from __future__ import annotations

import errno
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ...errors import ProtocolError
from ...wire.connection.connection import Connection
from ...wire.connection.frames import Header, Kind, pack_header
from ...wire.memory.copying import copy_into
from ...wire.progress.operation import Operation, settler
from ..base import Payload
from ..payload.small_message import MAX_BYTES, Predictor, Received, SmallMessage
from ..payload.tensors import describe_bytes, memory_of, parse_layout
from .inbox import Arrival, Inbox, Posted
from .message import (
    COLLECTIVE,
    FLAG_ASKED,
    FLAG_COLLECTIVE,
    FLAG_CREDITED,
    PAYLOAD_KINDS,
    SIZE,
    USER,
    Message,
    Receive,
    Taken,
    check_form,
    is_eager,
    key_of,
)
from .outbox import WINDOW_BYTES, Outbox
from .owner import StreamOwner
from .sending import EAGER_BYTES, StreamSending

REPORT_BYTES: Final = WINDOW_BYTES // 4  # what is consumed of the window before the sender hears of it


def _fits(receive: Receive, message: Message) -> bool:
    if receive.meta is None:
        return True
    return receive.meta == message.meta and (receive.view is None or len(receive.view) == message.size_bytes)


class MessageStream(StreamSending):
    """One peer's messages in both directions; a connection sink."""

    def __init__(self, owner: StreamOwner, rank: int, *, eager_bytes: int = EAGER_BYTES) -> None:
        super().__init__(owner, rank, eager_bytes=eager_bytes)
        self.said_bye = False
        self.bytes_received = self.messages_received = 0
        self._inbox: Inbox[Receive, Message] = Inbox(_fits)
        self._copying: dict[int, bool] = {}  # by message: whether the payload has ended; guarded by the read side
        self._predictor = Predictor()
        self._failure = ""  # why we could not go on
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

    def recv(self, space: int, tag: int, meta: bytes | None, tensor: Tensor | None) -> Operation[Payload]:
        """Receive into ``tensor``, whose description ``meta`` must equal the message's; both None: any payload."""
        key = key_of(space, tag)
        if tensor is not None and self._comes_at_once(key, tensor.nbytes):
            assert meta is not None
            received = self.connection.run_now(partial(self._receive_at_once, key, meta, tensor))
            if received is not None:
                return received
        operation: Operation[Payload] = Operation()
        self._start(Receive(operation, space, meta, tensor), key)  # type: ignore[arg-type]
        return operation

    def recv_bytes(self, space: int, tag: int) -> Operation[Received]:
        """Receive any payload; a small ``[n]`` uint8 may come as a ``SmallMessage``, the memory that it would have."""
        operation: Operation[Received] = Operation()
        receive = Receive(operation, space, None, None)  # type: ignore[arg-type]
        receive.takes_bytes = True
        self._start(receive, key_of(space, tag))
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

    def differs(self, signature: bytes, theirs: bytes) -> Exception:
        """Return the error of a collective that is another one at the peer, or (empty) that it gave up."""
        return self._mismatch(COLLECTIVE, signature, theirs)

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
        if not self._ended.done and self._connection is not None and not self.said_bye:  # who did, is answered
            self.connection.queue(pack_header(Kind.BYE))
            self.connection.finish_writing(lambda: None)
        return self._ended

    def withdraw(self, error: Exception) -> list[Operation[Any]]:
        """Take nothing new, and take out what waits. Return its operations, which are to fail next.

        What has arrived is kept, and what was sent goes on. What ``is_moving`` then can only be aborted.
        """
        with self._issue_lock:
            if self._error is not None or self._connection is None:
                return []
            self._error, self._kept = error, True
            sends = self._outbox.withdraw_all()
            for send in sends:
                self._queue_withdrawal(send)
            self._unsent.difference_update(sends)
        self.connection.flush()
        receives: list[Receive] = []
        self.connection.run_and_wait(partial(self._withdraw_receives, receives))
        return [*(send.operation for send in sends), *(receive.operation for receive in receives)]

    @property
    def is_moving(self) -> bool:
        """After ``withdraw``: whether data moves from or to the memory of a caller; or it never was connected."""
        return self._connection is None or bool(self._unsent) or self._inbox.has_moving

    @property
    def moves_beside(self) -> bool:
        """After ``withdraw``: whether data does so beside the connection, whose end does not stop it."""
        return False

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
        if receive is None:
            return False
        self._place_of(receive, message)[:] = payload
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
        if self.said_bye or self._error is not None:
            return
        if self._failure:
            self._owner.stream_failed(self.rank, self._failure)
        elif self._connection is not None and self._connection.lost_errno == errno.EBADMSG:  # only this end knows why
            self._owner.stream_failed(self.rank, f"cannot use its connection with rank {self.rank}: {reason}")
        else:
            self._owner.stream_lost(self.rank, reason)

    # ---- receiving

    def prepare(self) -> None:
        """Get ready for a message of bytes like the last ones."""
        self._predictor.prepare()

    def _start(self, receive: Receive, key: int) -> None:
        operation = receive.operation
        operation.on_cancel = partial(self._cancel_receive, receive)
        operation.slow_cancel = receive.view is not None and len(receive.view) > self._slow_cancel_bytes
        self.connection.run(partial(self._post, receive, key))

    def _comes_at_once(self, key: int, size_bytes: int) -> bool:
        """Whether a receive of so many bytes may have its message at once. Called with nothing held."""
        return self._inbox.has_complete(key)

    def _receive_at_once(self, key: int, meta: bytes, tensor: Tensor) -> Operation[Any] | None:
        """Receive a message that is here and complete. None: it has to go the usual way."""
        if self._error is not None or self.connection.was_interrupted:
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
        if self.connection.was_interrupted:
            self._inbox.lose_arrived()
        if self._error is not None and not (self._kept and self._inbox.has_complete(key)):
            self.connection.defer(partial(receive.operation.fail, self._error))
            return False
        if receive.operation.done:  # cancelled before its turn came
            return False
        if self._inbox.is_abandoned(key):
            self._fail_abandoned(receive)
            return False
        large = receive.tensor is None or receive.view is None or len(receive.view) > self._eager_bytes
        met = self._inbox.post(key, receive, large=large)
        try:
            if isinstance(met, Arrival) and met.complete:
                self._arrived(met)
            self._act()
        except ProtocolError as error:  # there is no memory for it: the receive is in no queue any more
            self.connection.defer(partial(receive.operation.fail, error))
            self.connection.abort(str(error))
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
        """A frame and its payload are here. Return the receive that takes that, if it is so simple."""
        if not is_eager(header):
            return None
        key = key_of(message.space, header.tag)
        return self._inbox.arrive_complete(key, header.seq, message, message.size_bytes, self._can_take)

    def _can_take(self, receive: Receive, message: Message) -> bool:
        """Whether a receive takes a message as it is; one of any payload gets a buffer, before anything is promised."""
        if receive.view is not None:
            return receive.meta == message.meta and len(receive.view) == message.size_bytes
        if receive.meta is not None or not message.size_bytes:
            return False
        if (
            receive.takes_bytes
            and message.size_bytes <= MAX_BYTES
            and message.meta == describe_bytes(message.size_bytes)
        ):
            message.small_message = self._small_message(message.size_bytes)
            return True
        check_form(message)
        message.buffer = self._allocate(message.size_bytes)
        return True

    def _received(self, receive: Receive, header: Header, message: Message) -> None:
        """A message that was complete is where its receive has it."""
        self.messages_received += 1
        self.bytes_received += message.size_bytes
        value: object = receive.source
        if message.small_message is not None:
            value = message.small_message
        elif message.buffer is not None:
            value = parse_layout(message.meta, message.size_bytes).build(message.buffer)
        self._hand_over(receive, key_of(message.space, header.tag), header.seq, message, value)

    def _place_of(self, receive: Receive, message: Message) -> memoryview:
        """Return where a message is to be that this receive takes."""
        if message.small_message is not None:
            return message.small_message.memory
        if message.buffer is not None:
            return memory_of(message.buffer)
        assert receive.view is not None
        return receive.view

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
        self.connection.defer(partial(receive.operation.fail, error))

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
            self.connection.defer(partial(operation.succeed, value))

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
        if message.small_message is not None:
            message.buffer = torch.frombuffer(message.small_message.memory, dtype=torch.uint8)
            message.small_message = None
        if message.buffer is None and tensor is not None and message.size_bytes:
            try:
                message.buffer = self._allocate(message.size_bytes)
            except ProtocolError as error:
                self.connection.run_and_wait(partial(self._lose, str(error)))
                return
            self._fill(message.buffer, tensor)
        self.connection.run_and_wait(partial(self._put_back, key, seq, message))

    def _lose(self, reason: str) -> None:
        """A message is lost: nobody gets one that is behind it, as if that were the next."""
        self.connection.was_interrupted = True
        self.connection.abort(reason)

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
            raise self._without_memory(size_bytes, error) from error

    def _small_message(self, size_bytes: int) -> SmallMessage:
        try:
            return self._predictor.take(size_bytes)
        except MemoryError as error:
            raise self._without_memory(size_bytes, error) from error

    def _without_memory(self, size_bytes: int, error: Exception) -> ProtocolError:
        self._failure = f"had no memory for a message of {size_bytes} bytes from rank {self.rank}: {error}"
        return ProtocolError(self._failure)

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
            try:
                copy_into(taken.target, taken.source)
            except BaseException:  # an interrupt: the rest of it is missing
                self.connection.abort("interrupted while a cancelled message was copied")
                raise
            finally:
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
            self._redirect(arrival.seq, None)  # whoever reads on for a moment leaves the tensor alone
            return
        received = self._redirect(arrival.seq, memory_of(message.buffer))
        if receive.tensor is not None and received:
            receive.taken = Taken(arrival.seq, message.buffer, receive.tensor, received)
            self._copying[arrival.seq] = False

    def _redirect(self, seq: int, target: memoryview | None) -> int:
        """Let the rest of a payload that is coming go elsewhere (None drops it). Return how much of it has come."""
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
                self.connection.queue(pack_header(Kind.CREDIT, flags=self._credit_flags(key), tag=key >> 1))
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
                self.connection.defer(partial(mismatch.receive.operation.fail, error))
            inbox.mismatches.clear()
        if inbox.consumed_bytes >= REPORT_BYTES:
            self._say_consumed(inbox.take_consumed())

    def _credit_flags(self, key: int) -> int:
        """Return what a credit on that tag says."""
        return key & FLAG_COLLECTIVE

    def _say_consumed(self, size_bytes: int) -> None:
        """Tell the peer that so many bytes have left the window."""
        self.connection.queue(pack_header(Kind.WINDOW, seq=size_bytes))
        self.connection.defer(self.connection.flush)

    def _bye(self) -> None:
        self.said_bye = True
        self.connection.defer(self._answer_bye)

    def _answer_bye(self) -> None:
        self._drained.succeed(None)
        self.connection.finish_writing(lambda: None)

    def _withdraw_receives(self, withdrawn: list[Receive]) -> None:
        withdrawn += self._inbox.withdraw_all()

    def _fail_all(self, error: Exception) -> None:
        receives = self._inbox.receives()
        for receive in receives if self._kept else ():
            self._inbox.withdraw_receive(receive)
        if not self._kept:
            self._inbox = Inbox(_fits)
        self._predictor = Predictor()
        for receive in receives:
            receive.operation.on_cancel = None
            self.connection.defer(partial(receive.operation.fail, error))
        with self._issue_lock:
            sends, self._unsent = self._unsent, set()
            self._outbox = Outbox(eager_bytes=self._eager_bytes)  # a broken world may stay for long, its tensors not
        for send in sends:
            send.operation.on_cancel = None
            self.connection.defer(partial(send.operation.fail, error))

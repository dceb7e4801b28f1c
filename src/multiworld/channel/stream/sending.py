"""The sending half of a message stream: what goes to one peer, and when the caller's memory is free again."""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

from torch import Tensor

from ...errors import CollectiveMismatchError, TensorMismatchError
from ...wire.connection.connection import Connection
from ...wire.connection.frames import Header, Kind, pack_header
from ...wire.progress.operation import Operation
from ..payload.tensors import describe_bytes, describe_text, memory_of
from .message import COLLECTIVE, FLAG_COLLECTIVE, FLAG_CREDITED, MESSAGE, SIZE, Send, key_of
from .outbox import Outbox, Route
from .owner import StreamOwner

EAGER_BYTES: Final = 512 * 1024
SMALL_BYTES: Final = 16 * 1024  # worth copying into one write with its header
SLOW_CANCEL_BYTES: Final = 1024 * 1024  # what cancelling may have to copy and would stall an event loop with

_SENT: Operation[None] = Operation.succeeded(None)


class StreamSending:
    """What goes to one peer; ``MessageStream`` adds what comes from it."""

    def __init__(self, owner: StreamOwner, rank: int, *, eager_bytes: int = EAGER_BYTES) -> None:
        self.rank = rank
        self.bytes_sent = self.messages_sent = 0
        self._owner = owner
        self._eager_bytes = eager_bytes
        self._slow_cancel_bytes = SLOW_CANCEL_BYTES
        self._connection: Connection | None = None
        self._outbox: Outbox[Send] = Outbox(eager_bytes=eager_bytes)
        self._issue_lock = threading.Lock()  # numbers and queue order must agree
        self._unsent: set[Send] = set()
        self._num_unsaid = 0  # frames that wait elsewhere than in the connection: none may overtake them
        self._error: Exception | None = None

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "stream used before it was connected"
        return self._connection

    @property
    def slow_cancel_bytes(self) -> int:
        """Cancelling an operation of more bytes than this may take long."""
        return self._slow_cancel_bytes

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

    def send_bytes(self, space: int, tag: int, packed: bytearray) -> bool:
        """Send a few bytes at once, as if they were a tensor ``[n]`` uint8. False: they have to be sent as one."""
        size_bytes = len(packed)
        return size_bytes <= SMALL_BYTES and self._write_at_once(space, tag, describe_bytes(size_bytes), packed)

    def unsent(self) -> list[Operation[None]]:
        with self._issue_lock:
            return [send.operation for send in list(self._unsent)]  # others discard from it without the lock

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
        return tensor.nbytes <= SMALL_BYTES and self._write_at_once(space, tag, meta, memory_of(tensor))

    def _write_at_once(self, space: int, tag: int, meta: bytes, memory: memoryview | bytearray) -> bool:
        size_bytes = len(memory)
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
                frame = b"".join((header, meta, memory))
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
            self.connection.defer(partial(send.operation.fail, error))
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

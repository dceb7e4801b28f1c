"""The frames that one connection has still to send: queued from any thread, written by one that finds the side free."""

from __future__ import annotations

import array
import errno
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from ..interrupts import is_owned
from ..memory.copying import copied
from ..progress.interest import Interest
from .records import MAX_BODY_BYTES, RecordWriter
from .unsent import Unsent

CHUNK_BYTES: Final = 4 * 1024 * 1024
INLINE_BYTES: Final = 256 * 1024  # what a user's thread writes itself before the progress thread takes over
MUCH_BYTES: Final = 16 * 1024  # less does not fill what the kernel holds
MAX_SEGMENTS: Final = 64
RECORDS_BYTES: Final = 256 * 1024  # of one frame, for one call of the system


class _Fail(Protocol):
    def __call__(self, reason: str, code: int = 0) -> None: ...


def _ignore(reason: str, code: int = 0) -> None:
    pass


class _Outgoing:
    """One frame on its way out; ``plain``: what of it is still to be put into records, behind ``segments``."""

    __slots__ = ("closes", "descriptor", "on_sent", "plain", "segments")

    def __init__(
        self,
        segments: list[memoryview],
        on_sent: Callable[[], None] | None,
        descriptor: int | None = None,
        plain: list[memoryview] | None = None,
    ) -> None:
        self.segments, self.on_sent = segments, on_sent
        self.plain = plain
        self.descriptor = descriptor  # goes with the first byte; the socket is a Unix socket
        self.closes = descriptor is not None  # ``on_sent`` closes it, whatever becomes of the frame

    def take_on_sent(self) -> Callable[[], None] | None:
        """Only the thread that takes it calls it."""
        on_sent, self.on_sent = self.on_sent, None
        return on_sent


class WriteQueue:
    """Frames in call order. While ``interest.writing`` is set, the progress thread goes on when the socket takes more.

    ``fail`` ends the connection, with a reason and the system's error number. ``unsent`` hears of what is written.
    """

    def __init__(self, sock: socket.socket, interest: Interest, fail: _Fail, unsent: Unsent | None = None) -> None:
        self.lock = threading.RLock()  # never taken twice; whoever holds it looks at the queue again after releasing it
        self._sock, self._interest, self._fail, self._unsent = sock, interest, fail, unsent
        self._outgoing: deque[_Outgoing] = deque()
        self._calls: deque[Callable[[], None]] = deque()  # for the next flush
        self._records: RecordWriter | None = None

    def authenticate(self, records: RecordWriter) -> None:
        """Put what is queued from now on into records, as late as it is written: their order is that of the stream."""
        self._records = records

    def __len__(self) -> int:
        return len(self._outgoing)

    def clear(self) -> None:
        """With the lock held, or after the end."""
        for outgoing in self._outgoing:
            on_sent = outgoing.take_on_sent()
            if outgoing.closes and on_sent is not None:
                on_sent()
        self._outgoing.clear()
        self._calls.clear()

    def forget(self) -> None:
        """The connection has ended, and been told of it: what is queued from now on is dropped at once."""
        self._fail = _ignore
        self._outgoing, self._calls = deque(maxlen=0), deque(maxlen=0)

    def send(self, *segments: bytes | memoryview, on_sent: Callable[[], None] | None = None) -> None:
        """Queue one frame, in call order, from any thread, and write what the socket takes.

        ``on_sent`` is called when its memory may be reused. On a closed connection the frame is dropped.
        """
        self.queue(*segments, on_sent=on_sent)
        self.flush()

    def queue(self, *segments: bytes | memoryview, on_sent: Callable[[], None] | None = None) -> None:
        """As ``send``, but write nothing yet: for callers that hold a lock; ``flush`` afterwards."""
        views = [
            segment if isinstance(segment, memoryview) else memoryview(segment) for segment in segments if len(segment)
        ]
        if self._records is None:
            self._outgoing.append(_Outgoing(views, on_sent))
        else:
            self._outgoing.append(_Outgoing([], on_sent, None, views))

    def queue_descriptor(self, frame: bytes, descriptor: int, *, on_sent: Callable[[], None]) -> None:
        """Queue a frame that a descriptor goes with, over a Unix socket; closed after ``on_sent``."""
        outgoing = _Outgoing([memoryview(frame)], on_sent, descriptor)
        self._outgoing.append(outgoing)
        if not self._interest.over:
            return
        with self.lock:  # perhaps it was cleared before
            taken = outgoing.take_on_sent()
        if taken is not None:
            taken()

    def call_at_flush(self, call: Callable[[], None]) -> None:
        """For callers that hold a lock which ``call`` may want: the next flush runs it, on an open connection."""
        self._calls.append(call)

    def flush(self, budget: int = INLINE_BYTES) -> None:
        """Write what the socket takes, or until ``budget`` bytes have gone; the progress thread does the rest."""
        try:
            while self._calls and not self._interest.over:
                self._next_call()()
            while self._outgoing and not self._interest.writing and not self._interest.over:
                if not self.lock.acquire(blocking=False):
                    return  # the holder looks again after it has released
                finished = self._write(budget)
                self.lock.release()
                for on_sent in finished:
                    on_sent()
        except BaseException as error:
            self._recover(error)
            raise

    def _next_call(self) -> Callable[[], None]:
        try:
            return self._calls.popleft()
        except IndexError:  # another thread was quicker
            return lambda: None

    def send_now(self, frame: bytes) -> bool:
        """Write a small frame if nothing is in its way: the quick way. False: not a byte was written.

        It calls nobody; ``flush`` afterwards, as others may have queued frames meanwhile.
        """
        if self._records is not None:
            return False
        try:
            if self._outgoing or self._interest.writing or not self.lock.acquire(blocking=False):
                return False
            is_free = not (self._outgoing or self._interest.writing or self._interest.over)
            was_written = is_free and self._write_whole(frame)
            self.lock.release()
        except BaseException as error:
            self._recover(error)
            raise
        return was_written

    def _recover(self, error: BaseException) -> None:
        """With the lock held, bytes may have gone that were not counted, and would go twice: the connection is over.

        So it is after an interrupt at any other step, as who waits for what was sent may not have been told.
        """
        is_held = is_owned(self.lock)
        if is_held or not isinstance(error, Exception):
            self._fail("interrupted while sending")
        if is_held:
            self.lock.release()

    def _write_whole(self, frame: bytes) -> bool:
        try:
            sent = self._sock.send(frame)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._fail(error.strerror or str(error), error.errno or 0)
            return False
        if sent < len(frame):
            self._outgoing.appendleft(_Outgoing([memoryview(frame)[sent:]], None))
            self._interest.set_writing(True)
        return True

    def detach(self, owner: object) -> None:
        """Copy what is still to be sent of the frame whose ``on_sent`` is ``partial(…, owner)``, and forget that.

        Afterwards the original memory is no longer read.
        """
        with self.lock:
            for outgoing in list(self._outgoing):  # others append meanwhile
                on_sent = outgoing.on_sent
                if isinstance(on_sent, partial) and on_sent.args == (owner,):
                    try:
                        outgoing.segments = [copied(segment) for segment in outgoing.segments]
                        if outgoing.plain is not None:
                            outgoing.plain = [copied(segment) for segment in outgoing.plain]
                    except (MemoryError, OSError) as error:  # the frame can neither go on nor be left out
                        self._fail(f"no memory for the rest of a cancelled message: {error}")
                        self.clear()
                    outgoing.on_sent = None
                    break
        self.flush()  # the progress thread may have found the lock held

    def _write(self, budget: int) -> list[Callable[[], None]]:
        finished: list[Callable[[], None]] = []
        while self._outgoing and not self._interest.over:
            batch, batch_bytes = self._next_batch()
            try:
                sent = self._send(batch) if batch else 0
            except (BlockingIOError, InterruptedError):
                sent = -1
            except OSError as error:
                self._fail(error.strerror or str(error), error.errno or 0)
                break
            if sent > MUCH_BYTES and self._unsent is not None:
                self._unsent.wrote(sent)
            if sent < 0 or sent < batch_bytes:
                self._consume(max(sent, 0), finished)
                self._interest.set_writing(True)
                break
            self._consume(sent, finished)
            budget -= sent
            if budget <= 0 and self._outgoing:
                self._interest.set_writing(True)
                break
        return finished

    def _send(self, batch: list[memoryview]) -> int:
        first = self._outgoing[0]
        if first.descriptor is None:
            return self._sock.sendmsg(batch)
        rights = array.array("i", [first.descriptor])
        try:
            sent = self._sock.sendmsg(batch, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            sent = self._sock.sendmsg(batch)  # too many are on their way: the peer answers as if it had no room for it
        first.descriptor = None
        return sent

    def _next_batch(self) -> tuple[list[memoryview], int]:
        batch: list[memoryview] = []
        total = 0
        for index in range(min(len(self._outgoing), MAX_SEGMENTS)):  # by index: others append meanwhile
            if index and self._outgoing[index].descriptor is not None:
                break
            segments = self._segments_of(self._outgoing[index])
            if len(batch) + len(segments) > MAX_SEGMENTS:
                segments = segments[: MAX_SEGMENTS - len(batch)]  # the kernel takes no more than 1,024 at once
            batch.extend(segments)
            total += sum(map(len, segments))
            if len(batch) >= MAX_SEGMENTS or total >= CHUNK_BYTES or self._outgoing[index].plain:
                break
        return batch, total

    def _segments_of(self, outgoing: _Outgoing) -> list[memoryview]:
        """Return what can be written of a frame now: of one that goes in records, the next few of them."""
        records, plain = self._records, outgoing.plain
        if records is None or not plain or outgoing.segments:
            return outgoing.segments
        total = 0
        while plain and total < RECORDS_BYTES:
            body: list[memoryview] = []
            rest_bytes = MAX_BODY_BYTES
            while plain and rest_bytes:
                piece = plain[0][:rest_bytes]
                if len(piece) == len(plain[0]):
                    del plain[0]
                else:
                    plain[0] = plain[0][rest_bytes:]
                body.append(piece)
                rest_bytes -= len(piece)
            outgoing.segments += [memoryview(records.head(body)), *body]
            total += MAX_BODY_BYTES - rest_bytes
        return outgoing.segments

    def _consume(self, sent: int, finished: list[Callable[[], None]]) -> None:
        while self._outgoing:
            segments = self._outgoing[0].segments
            while segments and sent >= len(segments[0]):
                sent -= len(segments.pop(0))
            if segments:
                if sent:
                    segments[0] = segments[0][sent:]
                return
            if self._outgoing[0].plain:
                return
            on_sent = self._outgoing.popleft().take_on_sent()
            if on_sent is not None:
                finished.append(on_sent)

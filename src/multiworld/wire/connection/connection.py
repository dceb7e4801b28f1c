"""One framed connection: sends from any thread, reads on the progress thread or on a thread that waits for it."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from ...errors import ProtocolError, RecordError
from ..interrupts import is_owned
from ..progress.interest import READ_EVENTS, Interest
from ..progress.loop_reader import LoopReader
from ..progress.operation import Operation
from ..progress.spinning import QuickWaits
from ..progress.thread import ProgressThread
from .frames import FrameParser
from .low_water import LowWater
from .payload_wait import PayloadWait
from .records import RecordReader, records_of
from .sink import ConnectionSink, Nobody
from .staging import staging
from .unsent import Unsent
from .watch import Watch, watch_together
from .write_queue import WriteQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")

CHUNK_BYTES: Final = 4 * 1024 * 1024  # what one call reads into place: smaller ones cost a fifth of the throughput
FAIR_BYTES: Final = 8 * 1024 * 1024  # what one connection may move before the others get their turn
BULK_BYTES: Final = 128 * 1024
"""Behind a payload of this size comes another, which should not go through the staging buffer."""
HEADERS_BYTES: Final = 2 * 1024
HANDSHAKE_META_BYTES: Final = 4096
MAX_META_BYTES: Final = 16 * 1024 * 1024  # once both sides have proved themselves
DESCRIPTOR: Final = struct.Struct("=i")
ONE_DESCRIPTOR: Final = socket.CMSG_LEN(DESCRIPTOR.size)  # CMSG_SPACE has room for two


_NOT_HELD: Final = object()


class Connection:
    """A non-blocking socket with a frame parser on one side and a queue of frames on the other.

    The thread that finds the read or the write side free does the work for all (flat combining), so that no caller ever
    waits for a transfer: at most for one chunk of it. The descriptor is closed on the progress thread only, so that no
    other thread can read from a descriptor that was reused.
    """

    def __init__(
        self,
        loop: ProgressThread,
        sock: socket.socket,
        sink: ConnectionSink,
        *,
        connected: bool = True,
        warn: Callable[..., None] = logger.warning,
        shakes_hands: bool = False,
    ) -> None:
        """``warn`` logs that the other end does not speak our protocol, until ``hand_over``.

        ``shakes_hands``: until then nothing is read that stands behind a frame, as it may be a record.
        """
        sock.setblocking(False)
        self._warn = warn
        self.is_local = sock.family == socket.AF_UNIX
        self._low_water: LowWater | None = None
        self._payload_wait: PayloadWait | None = None
        unsent: Unsent | None = None
        if not self.is_local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._low_water = LowWater(sock)
            unsent = Unsent(sock)
            self._payload_wait = PayloadWait(sock.fileno(), loop.fd)
        self.loop, self.sock = loop, sock
        self.sink = sink
        self.parser = FrameParser(sink, max_meta_bytes=HANDSHAKE_META_BYTES)
        self.key = b""  # what both ends share since their handshake
        self._shakes_hands = shakes_hands
        self._records: RecordReader | None = None  # once what comes is authenticated
        self.is_awaited: Callable[[], bool] = lambda: True  # whether somebody waits for what it brings
        self.is_receiving: Callable[[], bool] = lambda: True  # whether that is a message, or the rest of one
        self.takes_descriptors = False  # the other end may send some
        self._descriptor: int | None = None
        self._bulk = False  # large payloads are coming
        self._connecting = not connected
        self._lost_told = False
        self._reason = "closed here"
        self._flush_due = False
        self.was_interrupted = False  # with the read side held: something may be half done, or lost
        self.lost_errno = 0  # the system's error that ended it, if one did
        self._fd = sock.fileno()
        self._interest = Interest(loop, self._fd, reading=READ_EVENTS, writing=not connected)
        self._queue = WriteQueue(sock, self._interest, self._fail, unsent)
        self._watch = Watch(self, loop, self._fd, self._interest)
        self._read_lock = threading.RLock()  # never taken twice: see ``is_owned``
        self._reader = 0  # ident of the thread that holds the read side
        self._commands: deque[Callable[[], object]] = deque()
        self._deferred: deque[Callable[[], object]] = deque()
        loop.register(self._fd, READ_EVENTS if connected else select.EPOLLOUT, self)

    def __repr__(self) -> str:
        return (
            f"<Connection fd={self._fd} {'closed' if self._interest.over else 'open'} sink={type(self.sink).__name__}>"
        )

    @property
    def closed(self) -> bool:
        return self._interest.over

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def authenticate(self, role: bytes) -> None:
        """With the read side held, behind the last frame of a handshake each way: go on with records, by ``key``.

        ``role``: which end this is. Not between the processes of one host: the kernel says whose they are, and lets
        nobody in between.
        """
        if not self.is_local:
            writer, self._records = records_of(self.key, role)
            self._queue.authenticate(writer)

    def hand_over(self, sink: ConnectionSink) -> None:
        """With the read side held: what comes from now on is for ``sink``, which trusts the other side."""
        self.sink = self.parser.sink = sink
        self._shakes_hands = False
        self.parser.max_meta_bytes = MAX_META_BYTES
        self._warn = logger.warning
        opened = getattr(sink, "opened", None)  # of one that wants its connection before the first frame comes
        if opened is not None:
            opened(self)

    def defer(self, call: Callable[[], object]) -> None:
        """From inside a sink method or a command: run ``call`` once the read side is free again."""
        self._deferred.append(call)

    # ---- sending

    def send(self, *segments: bytes | memoryview, on_sent: Callable[[], None] | None = None) -> None:
        """Queue one frame, in call order, from any thread, and write what the socket takes.

        ``on_sent`` is called when its memory may be reused. On a closed connection the frame is dropped.
        """
        self._queue.send(*segments, on_sent=on_sent)

    def send_soon(self, frame: bytes) -> None:
        """As ``send``, from the progress thread, which writes what it queues in one turn all at once. Any thread."""
        self._queue.queue(frame)
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self._flush_queued)

    def _flush_queued(self) -> None:
        self._flush_due = False
        self._queue.flush()

    def queue(self, *segments: bytes | memoryview, on_sent: Callable[[], None] | None = None) -> None:
        """As ``send``, but write nothing yet: for callers that hold a lock; ``flush`` afterwards."""
        self._queue.queue(*segments, on_sent=on_sent)

    def call_at_flush(self, call: Callable[[], None]) -> None:
        """For callers that hold a lock which ``call`` may want: ``flush`` afterwards. If closed, it is dropped."""
        self._queue.call_at_flush(call)

    def queue_descriptor(self, frame: bytes, descriptor: int, *, on_sent: Callable[[], None]) -> None:
        """As ``queue``, of a frame that a descriptor goes with; it can be closed when ``on_sent`` is called."""
        self._queue.queue_descriptor(frame, descriptor, on_sent=on_sent)

    def take_descriptor(self) -> int | None:
        """With the read side held: return the descriptor that came with the present frame; it is the caller's now."""
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def flush(self) -> None:
        self._queue.flush()

    def send_now(self, frame: bytes) -> bool:
        """As ``queue``, but write a small frame if nothing is in its way. False: nothing was written or queued."""
        return self._queue.send_now(frame)

    def detach_unsent(self, owner: object) -> None:
        """Copy what is still to be sent of the frame whose ``on_sent`` is ``partial(…, owner)``, and forget that.

        Afterwards the original memory is no longer read.
        """
        self._queue.detach(owner)

    # ---- reading

    def run(self, command: Callable[[], object]) -> None:
        """Run ``command`` with the read side held: here and now if it is free, else on the thread that holds it."""
        if self._reader == threading.get_ident():
            command()
            return
        if self._commands or self._hold_reading(command, wait=False) is _NOT_HELD:
            self._commands.append(command)
        if self._commands or self._deferred:
            self._combine()

    def run_and_wait(self, command: Callable[[], None]) -> None:
        """As ``run``, and return only when ``command`` has run (after at most one chunk of a transfer)."""
        ran = threading.Event()

        def wrapped() -> None:
            try:
                command()
            finally:
                ran.set()

        self.run(wrapped)
        while not ran.wait(0.05):
            self._combine()

    def _combine(self) -> None:
        while (self._commands or self._deferred) and (
            self._hold_reading(self._drain_commands, wait=False) is not _NOT_HELD
        ):
            pass

    def run_now(self, command: Callable[[], T]) -> T | None:
        """Run ``command`` with the read side held and return its value; None if it would have to wait for others."""
        if self._reader == threading.get_ident():
            return command()
        value = None
        if not self._commands:
            held = self._hold_reading(command, wait=False)
            value = None if held is _NOT_HELD else held
        if self._commands or self._deferred:  # of those who came meanwhile
            self._combine()
        return value  # type: ignore[return-value]

    def _hold_reading(self, work: Callable[[], object], *, wait: bool) -> object:
        """Do ``work`` with the read side held, and then what that deferred. Return its value.

        ``_NOT_HELD``: somebody else holds it.
        """
        try:
            if not self._read_lock.acquire(blocking=wait):
                return _NOT_HELD
            self._reader = threading.get_ident()
            try:
                value = work()
            finally:
                self._release_reading()
        except Exception:
            raise
        except BaseException:  # an interrupt, between any two steps: something may be half done, or the lock still held
            self.was_interrupted = True
            self._fail("interrupted")
            if is_owned(self._read_lock):
                self._reader = 0
                self._read_lock.release()
            raise
        return value

    def _drain_commands(self) -> None:
        while self._commands:
            try:
                self._commands[0]()
            except Exception:
                self._commands.popleft()
                raise
            self._commands.popleft()  # one that was interrupted is run again when the connection is closed

    def _release_reading(self) -> None:
        num_deferred = len(self._deferred)
        self._reader = 0
        self._read_lock.release()
        for _ in range(num_deferred):
            try:
                call = self._deferred.popleft()
            except IndexError:
                return  # another thread was here meanwhile
            try:
                call()
            except Exception:  # the others wait for theirs
                logger.exception("callback %r of a connection failed", call)

    def read_available(self, fair_bytes: int = FAIR_BYTES) -> None:
        """Read and parse what the socket holds, up to a fair share, and run what was queued meanwhile."""
        self._hold_reading(partial(self._read_and_drain, fair_bytes), wait=True)
        if self._commands or self._deferred:
            self._combine()

    def _read_and_drain(self, budget: int) -> None:
        if self._commands:
            self._drain_commands()
        while budget > 0 and not self._interest.over:
            num_bytes, wanted = self._read_once()
            if self._commands:
                self._drain_commands()
            if num_bytes < wanted and not self._more_comes():
                break
            budget -= num_bytes

    def _more_comes(self) -> bool:
        if self._payload_wait is None or self._records is not None:
            return False
        return self._payload_wait.more_comes(self.parser.direct_bytes)

    def _read_once(self) -> tuple[int, int]:
        direct = None if self._records is not None else self.parser.direct()
        target = self._staging() if direct is None else direct[:CHUNK_BYTES]
        try:
            num_bytes = self._receive_rights(target) if self.takes_descriptors else self.sock.recv_into(target)
            if num_bytes == 0:
                self._fail("the connection was closed by the other side")
            elif self._records is not None:
                for body in self._records.read(target[:num_bytes]):
                    self.parser.feed(body)
                self._heard()
            elif direct is None:
                self.parser.feed(target[:num_bytes])
                self._heard()
            else:
                self.parser.advance(num_bytes)
            if self._low_water is not None and self._records is None:
                self._low_water.expect(self.parser.direct_bytes)
        except (BlockingIOError, InterruptedError):
            return 0, 1
        except ProtocolError as error:
            self._warn("closing connection from %s: %s", _peer_name(self.sock), str(error))  # a record keeps no frames
            self._fail(str(error), errno.EBADMSG if isinstance(error, RecordError) else errno.EPROTO)
            return 0, 1
        except OSError as error:
            self._fail(error.strerror or str(error), error.errno or 0)
            return 0, 1
        except Exception:
            logger.exception("closing connection from %s after a defect of its handler", _peer_name(self.sock))
            self._fail("internal error")
            return 0, 1
        except BaseException:  # an interrupt between reading and parsing: the rest would be taken for something else
            self._fail("interrupted while receiving")
            raise
        return num_bytes, len(target)

    def _receive_rights(self, target: memoryview) -> int:
        num_bytes, ancillary, _, _ = self.sock.recvmsg_into([target], ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC)
        for _, _, data in ancillary:
            self._drop_descriptor()
            (self._descriptor,) = DESCRIPTOR.unpack(data)
        return num_bytes

    def _drop_descriptor(self) -> None:
        descriptor = self.take_descriptor()
        if descriptor is not None:
            os.close(descriptor)

    def _staging(self) -> memoryview:
        if self._shakes_hands:
            return staging.buffer[: self.parser.missing_bytes]
        if not self._bulk or self._records is not None:
            return staging.buffer
        header = self.parser.in_payload  # of which nothing can be read into place: it is dropped, or ends here
        rest_bytes = 0 if header is None else header.payload_bytes - self.parser.received_bytes
        return staging.buffer[: rest_bytes + HEADERS_BYTES]

    def _heard(self) -> None:
        header = self.parser.in_payload
        payload_bytes = 0 if header is None else header.payload_bytes
        self._bulk = payload_bytes >= BULK_BYTES
        self._watch.heard(payload_bytes)

    def read_until(self, operation: Operation[Any], timeout_s: float | None) -> None:
        """Let the calling thread read this connection, at most until ``operation`` is done or the time is over.

        It may return before, when others read: wait for the operation then.
        """
        self._watch.read_until(operation, timeout_s)

    @property
    def quick_waits(self) -> QuickWaits:
        """How the last waits for what it brings went."""
        return self._watch.quick_waits

    @property
    def fd(self) -> int:
        """For a look whether there is something to read; once the connection is over, it may be another file's."""
        return self._fd

    def watch_from(self, reader: LoopReader) -> QuickWaits | None:
        """On an asyncio loop's thread that will await a message: let that loop read, if messages come quickly.

        Return how the last waits for this peer went, if the loop reads.
        """
        return self._watch.watch_from(reader)

    def keep_with(self, reader: LoopReader) -> None:
        """On an asyncio loop's thread that always listens: let that loop read, unless nothing comes for long."""
        self._watch.keep_with(reader)

    def read_for_loop(self) -> None:
        """On the asyncio loop's thread: the socket is readable."""
        self._watch.read_for_loop()

    # ---- the progress thread's side, and the end

    def on_ready(self, events: int) -> None:
        if self._connecting:
            self._finish_connecting()
            return
        if events & select.EPOLLOUT:
            self._interest.set_writing(False)
            self._queue.flush(FAIR_BYTES)
        if events & ~select.EPOLLOUT and self._interest.reading:
            self.read_available()

    def on_failure(self, error: BaseException) -> None:
        self.abort(f"internal error: {error}")

    def close_descriptor(self) -> None:
        self._interest.over = True
        self.sock.close()

    def _finish_connecting(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(os.strerror(code), code)
            return
        self._connecting = False
        self._interest.set_writing(False)
        self._queue.flush()

    def finish_writing(self, on_flushed: Callable[[], None]) -> None:
        """Send all that is queued, then tell the other side that no more comes (half close)."""

        def half_close() -> None:
            if not self._interest.over:
                try:
                    self.sock.shutdown(socket.SHUT_WR)
                except OSError as error:
                    logger.debug("half close: %s", error)
            on_flushed()

        self.send(b"", on_sent=half_close)

    def abort(self, reason: str = "closed here") -> None:
        """Close now, from any thread, dropping what is queued; a thread that waits on the socket wakes up."""
        self._fail(reason)

    def _fail(self, reason: str, code: int = 0) -> None:
        if self._interest.over:
            return
        self._reason, self.lost_errno = reason, code
        self._interest.over = True
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("shutdown of a connection that was not connected any more")
        self.loop.call_soon(self._close)

    def _close(self) -> None:
        """On the progress thread: give the descriptor back once no thread is inside a system call on it."""
        if self._lost_told:
            return
        self._lost_told = True
        self._watch.end_loop_reading()
        with self._read_lock, self._queue.lock, self._interest.lock:
            self.loop.unregister(self._fd)
            self.sock.close()
            self._queue.clear()
            self._drop_descriptor()
        self.sink.lost(self._reason)
        self._combine()
        self._forget()

    def _forget(self) -> None:
        """Let go of all that refer to this: what has ended should not wait for the garbage collector."""
        self.sink = self.parser.sink = Nobody()
        self.parser.take_whole = None
        self.is_awaited = self.is_receiving = lambda: False
        self._watch.forget()
        self._queue.forget()


def read_together(
    connections: Sequence[Connection], operation: Operation[Any], timeout_s: float | None, quick_waits: QuickWaits
) -> None:
    """As ``read_until``, of several connections of one progress thread; those that others read are left to them."""
    watch_together([connection._watch for connection in connections], operation, timeout_s, quick_waits)


def _peer_name(sock: socket.socket) -> str:
    try:
        peer = sock.getpeername()
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a process of this host"
    except OSError:
        return "an unknown address"

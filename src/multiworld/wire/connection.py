"""One framed TCP connection: sends from any thread, reads on the progress thread or on a thread that waits for it."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from ..errors import ProtocolError
from .copying import copied
from .frames import FrameParser, Header
from .loop_reader import PATROL_S, LoopReader, is_hot
from .operation import Operation
from .progress import ProgressThread
from .spinning import SPIN_S, QuickWaits

__all__ = ["Connection", "ConnectionSink"]

logger = logging.getLogger(__name__)

STAGING_BYTES = 64 * 1024
CHUNK_BYTES = 1024 * 1024
INLINE_BYTES = 256 * 1024  # what a user's thread writes itself before the progress thread takes over
FAIR_BYTES = 8 * 1024 * 1024  # what one connection may move before the others get their turn
MAX_SEGMENTS = 64
MAX_POLL_S = 3600.0
READ_EVENTS = select.EPOLLIN | select.EPOLLRDHUP
HANDSHAKE_META_BYTES = 4096
MAX_META_BYTES = 16 * 1024 * 1024  # once both sides have proved themselves


class ConnectionSink(Protocol):
    """What a connection talks to. All methods run with the connection's read side held: be short, use ``defer``."""

    def begin(self, header: Header, meta: bytes) -> memoryview | None: ...

    def end(self, header: Header, meta: bytes) -> None: ...

    def lost(self, reason: str) -> None:
        """The connection is gone; called exactly once, also after ``abort``. Nothing is held."""


class _Waker:
    """Wakes its thread from a poll; its descriptor ends with the thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.get_ident()
        self._set = False

    def wake(self, _: object = None) -> None:
        if threading.get_ident() != self._thread:
            os.eventfd_write(self.fd, 1)
            self._set = True

    def clear(self) -> None:
        if self._set:
            self._set = False
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                return  # of two who woke it at once, one had said so already when both were read

    def __del__(self) -> None:
        os.close(self.fd)


@runtime_checkable
class OpenedSink(Protocol):
    """A sink that wants to know its connection before the first frame comes."""

    def opened(self, connection: Connection) -> None: ...


class _ThreadBuffers(threading.local):
    """Each reading thread's staging buffer and wake-up descriptor, made on first use."""

    def __init__(self) -> None:
        self.staging = memoryview(bytearray(STAGING_BYTES))
        self._waker: _Waker | None = None

    @property
    def waker(self) -> _Waker:
        if self._waker is None:
            self._waker = _Waker()
        return self._waker


_buffers = _ThreadBuffers()


class _Outgoing:
    """One frame on its way out."""

    __slots__ = ("on_sent", "segments")

    def __init__(self, segments: list[memoryview], on_sent: Callable[[], None] | None) -> None:
        self.segments, self.on_sent = segments, on_sent


class Connection:
    """A non-blocking socket with a frame parser on one side and a queue of frames on the other.

    Whoever finds the read or the write side free does the work for all (flat combining), so that no caller ever waits
    for a transfer: at most for one chunk of it. The descriptor is closed on the progress thread only, so that no other
    thread can read from a descriptor that was reused.
    """

    def __init__(
        self,
        loop: ProgressThread,
        sock: socket.socket,
        sink: ConnectionSink,
        *,
        connected: bool = True,
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop, self.sock = loop, sock
        self.sink = sink
        self.parser = FrameParser(self, max_meta_bytes=HANDSHAKE_META_BYTES)
        self.on_connected: Callable[[], None] | None = None
        self._connecting = not connected
        self._closed = False
        self._lost_told = False
        self._reason = "closed here"
        self.lost_errno = 0  # the system's error that ended it, if one did
        self._outgoing: deque[_Outgoing] = deque()
        self._write_lock = threading.Lock()  # whoever holds it looks at the queue again after releasing it
        self._events_lock = threading.Lock()  # the event mask has several owners
        self._blocked = not connected  # the socket takes no more, or the progress thread is to go on
        self._read_lock = threading.Lock()
        self._reader = 0  # ident of the thread that holds the read side
        self._commands: deque[Callable[[], None]] = deque()
        self._deferred: deque[Callable[[], None]] = deque()
        self._watcher = (
            threading.Lock()
        )  # held by the one thread that waits on the socket instead of the progress thread
        self._loop_reader: LoopReader | None = None  # the asyncio loop that reads at present
        self._heard_at = 0.0  # when a small piece came last
        self._guarded = False  # the progress thread looks after what a thread reads
        self._poller: tuple[int, select.poll] | None = None  # of the thread that watched last
        self.quick_waits = QuickWaits()
        self._reading_events = READ_EVENTS
        self._fd = sock.fileno()
        loop.register(self._fd, READ_EVENTS if connected else select.EPOLLOUT, self)

    def __repr__(self) -> str:
        return f"<Connection fd={self._fd} {'closed' if self._closed else 'open'} sink={type(self.sink).__name__}>"

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def num_queued(self) -> int:
        return len(self._outgoing)

    def hand_over(self, sink: ConnectionSink) -> None:
        """With the read side held: what comes from now on is for ``sink``, which trusts the other side."""
        self.sink = sink
        self.parser.max_meta_bytes = MAX_META_BYTES
        if isinstance(sink, OpenedSink):
            sink.opened(self)

    # What the parser calls: the sink may change between frames.
    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        return self.sink.begin(header, meta)

    def end(self, header: Header, meta: bytes) -> None:
        self.sink.end(header, meta)

    def defer(self, call: Callable[[], None]) -> None:
        """From inside a sink method or a command: run ``call`` once the read side is free again."""
        self._deferred.append(call)

    # ---- sending

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
        self._outgoing.append(_Outgoing(views, on_sent))

    def flush(self) -> None:
        self._flush(INLINE_BYTES)

    def send_now(self, frame: bytes) -> bool:
        """Write a small frame if nothing is in its way: the quick way. False: not a byte was written."""
        if self._outgoing or self._blocked or not self._write_lock.acquire(blocking=False):
            return False
        try:
            if self._outgoing or self._blocked or self._closed:
                return False
            return self._write_whole(frame)
        except BaseException:  # an interrupt between sending and counting: the rest would be lost
            self._fail("interrupted while sending")
            raise
        finally:
            self._write_lock.release()
            if self._outgoing:  # queued by others while the lock was held
                self._flush(INLINE_BYTES)

    def _write_whole(self, frame: bytes) -> bool:
        try:
            sent = self.sock.send(frame)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._fail(error.strerror or str(error), error.errno or 0)
            return False
        if sent < len(frame):
            self._outgoing.appendleft(_Outgoing([memoryview(frame)[sent:]], None))
            self._await_writable()
        return True

    def detach_unsent(self, owner: object) -> None:
        """Copy what is still to be sent of the frame whose ``on_sent`` is ``partial(…, owner)``, and forget that.

        Afterwards the original memory is no longer read.
        """
        with self._write_lock:
            for outgoing in list(self._outgoing):  # others append meanwhile
                on_sent = outgoing.on_sent
                if isinstance(on_sent, partial) and on_sent.args == (owner,):
                    outgoing.segments = [copied(segment) for segment in outgoing.segments]
                    outgoing.on_sent = None
                    break
        self.flush()  # the progress thread may have found the lock held

    def _flush(self, budget: int) -> None:
        while self._outgoing and not self._blocked and not self._closed:
            if not self._write_lock.acquire(blocking=False):
                return  # the holder looks again after it has released
            try:
                finished = self._write(budget)
            except BaseException:  # an interrupt between sending and counting: the same bytes would go twice
                self._fail("interrupted while sending")
                raise
            finally:
                self._write_lock.release()
            for on_sent in finished:
                on_sent()

    def _write(self, budget: int) -> list[Callable[[], None]]:
        finished: list[Callable[[], None]] = []
        while self._outgoing and not self._closed:
            batch, batch_bytes = self._next_batch()
            try:
                sent = self.sock.sendmsg(batch) if batch else 0
            except (BlockingIOError, InterruptedError):
                sent = -1
            except OSError as error:
                self._fail(error.strerror or str(error), error.errno or 0)
                break
            if sent < 0 or sent < batch_bytes:
                self._consume(max(sent, 0), finished)
                self._await_writable()
                break
            self._consume(sent, finished)
            budget -= sent
            if budget <= 0 and self._outgoing:
                self._await_writable()
                break
        return finished

    def _next_batch(self) -> tuple[list[memoryview], int]:
        batch: list[memoryview] = []
        total = 0
        for index in range(min(len(self._outgoing), MAX_SEGMENTS)):  # by index: others append meanwhile
            segments = self._outgoing[index].segments
            if len(batch) + len(segments) > MAX_SEGMENTS:
                segments = segments[: MAX_SEGMENTS - len(batch)]  # the kernel takes no more than 1,024 at once
            batch.extend(segments)
            total += sum(map(len, segments))
            if len(batch) >= MAX_SEGMENTS or total >= CHUNK_BYTES:
                break
        return batch, total

    def _consume(self, sent: int, finished: list[Callable[[], None]]) -> None:
        while self._outgoing:
            segments = self._outgoing[0].segments
            while segments and sent >= len(segments[0]):
                sent -= len(segments.pop(0))
            if segments:
                if sent:
                    segments[0] = segments[0][sent:]
                return
            on_sent = self._outgoing.popleft().on_sent
            if on_sent is not None:
                finished.append(on_sent)

    def _await_writable(self) -> None:
        with self._events_lock:
            self._blocked = True
            self._update_events()

    def _update_events(self) -> None:
        if not self._closed:
            writing = select.EPOLLOUT if self._blocked else 0
            self.loop.modify(self._fd, self._reading_events | writing)

    # ---- reading

    def run(self, command: Callable[[], None]) -> None:
        """Run ``command`` with the read side held: here and now if it is free, else on the thread that holds it."""
        if self._reader == threading.get_ident():
            command()
            return
        if self._commands or not self._read_lock.acquire(blocking=False):
            self._commands.append(command)
        else:
            self._reader = threading.get_ident()
            try:
                command()
            finally:
                self._release_reading()
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
        while (self._commands or self._deferred) and self._read_lock.acquire(blocking=False):
            self._reader = threading.get_ident()
            try:
                self._drain_commands()
            finally:
                self._release_reading()

    def _drain_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _release_reading(self) -> None:
        deferred: list[Callable[[], None]] = []
        if self._deferred:
            deferred.extend(self._deferred)
            self._deferred.clear()
        self._reader = 0
        self._read_lock.release()
        for call in deferred:
            try:
                call()
            except Exception:  # the others wait for theirs
                logger.exception("callback %r of a connection failed", call)

    def read_available(self) -> None:
        """Read and parse what the socket holds, up to a fair share, and run what was queued meanwhile."""
        self._read_lock.acquire()
        self._reader = threading.get_ident()
        try:
            self._drain_commands()
            budget = FAIR_BYTES
            while budget > 0 and not self._closed:
                num_bytes, wanted = self._read_once()
                self._drain_commands()
                if num_bytes < wanted:
                    break
                budget -= num_bytes
        finally:
            self._release_reading()
        self._combine()

    def _read_once(self) -> tuple[int, int]:
        direct = self.parser.direct()
        target = _buffers.staging if direct is None else direct[:CHUNK_BYTES]
        try:
            num_bytes = self.sock.recv_into(target)
            if num_bytes == 0:
                self._fail("the connection was closed by the other side")
            elif direct is None:
                self._heard_at = time.monotonic()
                self.parser.feed(target[:num_bytes])
            else:
                self.parser.advance(num_bytes)
        except (BlockingIOError, InterruptedError):
            return 0, 1
        except ProtocolError as error:
            logger.warning("closing connection from %s: %s", _peer_name(self.sock), error)
            self._fail(str(error))
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

    def read_until(self, operation: Operation[object], timeout_s: float | None) -> None:
        """Let the calling thread read this connection until ``operation`` is done or the time is over.

        It saves the hand-over from the progress thread. If another thread does so already, this returns at once.
        """
        if self.loop.on_thread or not self._watcher.acquire(blocking=False):
            return
        waker = _buffers.waker
        waker.clear()
        operation.add_callback(waker.wake)
        try:
            if self._reading_events:
                self._set_reading(0)
            poller = self._poller_for(waker.fd)
            timeout_ms = None if timeout_s is None else int(min(timeout_s, MAX_POLL_S) * 1000)
            while not operation.done and not self._closed:
                if not self._wait_readable(poller, timeout_ms):
                    return
                waker.clear()
                if not operation.done:
                    self.read_available()
        finally:
            with self._events_lock:
                if not is_hot(self._heard_at):
                    self._reading_events = READ_EVENTS
                    self._update_events()
                elif not self._guarded:  # this thread will be back in a moment
                    self._guarded = True
                    self.loop.call_later(PATROL_S, self._guard)
                self._watcher.release()

    def _wait_readable(self, poller: select.poll, timeout_ms: int | None) -> bool:
        began = time.perf_counter()
        ready: list[tuple[int, int]] = []
        if self.quick_waits.pay:
            while not ready and time.perf_counter() - began < SPIN_S:
                ready = poller.poll(0)
        if not ready:
            ready = poller.poll(timeout_ms)
        self.quick_waits.waited(time.perf_counter() - began)
        return bool(ready)

    def _guard(self) -> None:
        """On the progress thread, now and then while a thread comes back again and again to read."""
        again = is_hot(self._heard_at) and not self._closed
        with self._events_lock:  # a thread that stops reading meanwhile must know whether anybody looks after it
            free = self._watcher.acquire(blocking=False)
            self._guarded = again
            if free and not again:
                self._reading_events = READ_EVENTS
                self._update_events()
        if free:
            try:
                if again:
                    self.read_available()  # what has come while the thread is busy elsewhere
            finally:
                self._watcher.release()
        if again:
            self.loop.call_later(PATROL_S, self._guard)

    def watch_from(self, reader: LoopReader) -> None:
        """On an asyncio loop's thread that will await a message: let that loop read, if messages come quickly."""
        if self._loop_reader is not None or self._closed or not is_hot(self._heard_at):
            return
        if not self._watcher.acquire(blocking=False):
            return
        with self._events_lock:
            if self._closed:
                self._watcher.release()
                return
            self._loop_reader = reader
            self._reading_events = 0
            self._update_events()
            reader.watch(self._fd, self)
        self.loop.call_later(PATROL_S, self._patrol)

    def read_for_loop(self) -> None:
        """On the asyncio loop's thread: the socket is readable."""
        self.read_available()
        if self.parser.direct() is not None:  # a large payload is the progress thread's work
            self._end_loop_reading()

    def _patrol(self) -> None:
        """On the progress thread, now and then while a loop reads."""
        if self._loop_reader is None or self._closed:
            return
        if not is_hot(self._heard_at):
            self._end_loop_reading()
            return
        self.read_available()  # what the loop was too busy to read
        self.loop.call_later(PATROL_S, self._patrol)

    def _end_loop_reading(self) -> None:
        with self._events_lock:
            reader, self._loop_reader = self._loop_reader, None
            if reader is None:
                return
            reader.unwatch(self._fd)
            self._reading_events = READ_EVENTS
            self._update_events()
        self._watcher.release()

    def _poller_for(self, wake_fd: int) -> select.poll:
        if self._poller is None or self._poller[0] != wake_fd:
            poller = select.poll()
            poller.register(self._fd, select.POLLIN | select.POLLRDHUP)
            poller.register(wake_fd, select.POLLIN)
            self._poller = (wake_fd, poller)
        return self._poller[1]

    def _set_reading(self, events: int) -> None:
        with self._events_lock:
            self._reading_events = events
            self._update_events()

    # ---- the progress thread's side, and the end

    def on_ready(self, events: int) -> None:
        if self._connecting:
            self._finish_connecting()
            return
        if events & select.EPOLLOUT:
            with self._events_lock:
                self._blocked = False
                self._update_events()
            self._flush(FAIR_BYTES)
        if events & ~select.EPOLLOUT and self._reading_events:
            self.read_available()

    def on_failure(self, error: BaseException) -> None:
        self.abort(f"internal error: {error}")

    def close_descriptor(self) -> None:
        self._closed = True
        self.sock.close()

    def _finish_connecting(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(os.strerror(code), code)
            return
        self._connecting = False
        with self._events_lock:
            self._blocked = False
            self._update_events()
        if self.on_connected is not None:
            self.on_connected()
        self._flush(INLINE_BYTES)

    def finish_writing(self, on_flushed: Callable[[], None]) -> None:
        """Send all that is queued, then tell the other side that no more comes (half close)."""

        def half_close() -> None:
            if not self._closed:
                try:
                    self.sock.shutdown(socket.SHUT_WR)
                except OSError as error:
                    logger.debug("half close: %s", error)
            on_flushed()

        self.send(b"", on_sent=half_close)

    def abort(self, reason: str = "closed here") -> None:
        """Close now, from any thread, dropping what is queued; whoever waits on the socket wakes up."""
        self._fail(reason)

    def _fail(self, reason: str, code: int = 0) -> None:
        if self._closed:
            return
        self._reason, self.lost_errno = reason, code
        self._closed = True
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
        self._end_loop_reading()
        with self._read_lock, self._write_lock, self._events_lock:
            self.loop.unregister(self._fd)
            self.sock.close()
            self._outgoing.clear()
        self.sink.lost(self._reason)
        self._combine()


def _peer_name(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername())
    except OSError:
        return "an unknown address"

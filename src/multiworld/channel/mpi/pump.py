"""One thread that sends and takes chunks over MPI for all worlds of a process, and sleeps while there are none.

Nothing in MPI tells a sleeping thread that a message has come, and waiting inside MPI burns a core and cannot be ended.
So the thread looks, again and again, but only while a payload is known to be under way: streams know that from the
headers, which travel over our own connections. It looks at once again for a moment, then more and more rarely.

MPI gets to see the pump's buffers, never a caller's tensor: a request that it has begun cannot be taken back, and may
stay for ever when a peer is lost. Then a buffer stays with it, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...wire.backoff import BackOff
from ..threads import start_daemon
from .chunks import CHUNK_BYTES, HEADER_BYTES, BufferPool, Chunk, read_chunk

logger = logging.getLogger(__name__)

WINDOW = 4  # chunks to one process that it has not taken yet
SPIN_S = 300e-6
MIN_PAUSE_S = 50e-6
MAX_PAUSE_S = 2e-3
LINGER_S = 1.0  # how long the thread looks after what no world wants any more
IDLE_S = 5.0


class MpiError(Exception):
    """Why a payload cannot go over MPI, or come."""


class Request(Protocol):
    """As of mpi4py; raises what MPI reports."""

    def Test(self) -> bool: ...  # noqa: N802


class Message(Protocol):
    def receive(self, target: memoryview) -> Request: ...


class Found(NamedTuple):
    """A message that is here, and that nobody but its finder can receive any more."""

    message: Message
    size_bytes: int
    source: int


class Transport(Protocol):
    """What a pump needs of an MPI job. All return at once, and raise what MPI reports."""

    def send(self, message: memoryview, destination: int) -> Request: ...

    def find(self) -> Found | None: ...


class Source(Protocol):
    """A payload that goes out. Its methods are called on the pump's thread."""

    @property
    def destination(self) -> int:
        """The MPI rank."""

    @property
    def wanted(self) -> bool:
        """Whether its world still stands."""

    def fill(self, buffer: memoryview) -> int | None:
        """Write the next chunk, return its size; 0: nothing is left. None: not now."""

    def failed(self, error: Exception) -> None: ...


class Sink(Protocol):
    """Where the chunks of one key go. Its methods are called on the pump's thread."""

    @property
    def origin(self) -> int:
        """The MPI rank that they come from."""

    def take(self, chunk: Chunk) -> bool:
        """Take what the chunk holds. False: not yet, offer it again."""

    def failed(self, error: Exception) -> None:
        """MPI cannot receive from there."""


class _Sending(NamedTuple):
    request: Request
    buffer: memoryview
    source: Source


class _Arriving(NamedTuple):
    request: Request
    buffer: memoryview
    size_bytes: int
    source: int


class _Route:
    """What goes to one process: sources take turns, so no world waits for another's payload to end."""

    def __init__(self) -> None:
        self.sources: deque[Source] = deque()
        self.sending: deque[_Sending] = deque()

    def forget_unwanted(self) -> None:
        """A window that a lost peer never empties must not keep the others' sources, and so the thread, for ever."""
        if not all(source.wanted for source in self.sources):
            self.sources = deque(source for source in self.sources if source.wanted)


class MpiPump:
    """All but ``join`` may be called from any thread, and never block."""

    def __init__(self, transport: Transport, *, name: str = "multiworld-mpi") -> None:
        self._transport, self._name = transport, name
        self._lock = threading.Lock()
        self._sinks: dict[bytes, Sink] = {}
        self._num_expected = 0
        self._new: deque[Source] = deque()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        # of the thread
        self._routes: dict[int, _Route] = {}
        self._arriving: list[_Arriving] = []
        self._early: list[tuple[Chunk, memoryview]] = []
        self._pool = BufferPool()
        self._warned = False

    @property
    def in_use(self) -> bool:
        return bool(self._sinks)

    def attach(self, key: bytes, sink: Sink) -> None:
        with self._lock:
            self._sinks[key] = sink

    def detach(self, key: bytes) -> None:
        """What comes for this key from now on is dropped."""
        with self._lock:
            self._sinks.pop(key, None)
        self._woken.set()

    def send(self, source: Source) -> bool:
        """Send a payload. False: no thread can be started."""
        self._new.append(source)
        return self._wake()

    def expect(self) -> bool:
        """Look out for one payload more, until ``settled``. False: no thread can be started."""
        with self._lock:
            self._num_expected += 1
        return self._wake()

    def settled(self, number: int = 1) -> None:
        """So many payloads are here, or nobody waits for them any more."""
        with self._lock:
            self._num_expected -= number

    def _wake(self) -> bool:
        with self._lock:
            self._woken.set()
            if self._thread is None:
                self._thread = start_daemon(self._run, self._name)
            return self._thread is not None

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended, after the last ``detach``; False if it has not."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    # ---- the thread

    def _run(self) -> None:
        moved_at, pauses = time.monotonic(), BackOff(MIN_PAUSE_S, MAX_PAUSE_S)
        while True:
            self._woken.clear()  # before the look: what comes after it is seen at the next
            if self._turn():
                moved_at = time.monotonic()
                pauses.reset()
                continue
            quiet_s = time.monotonic() - moved_at
            if not self._is_busy(quiet_s):
                if self._rest():
                    return
                moved_at = time.monotonic()
                pauses.reset()
            elif quiet_s < SPIN_S:
                time.sleep(0)  # lets other threads run
            else:
                self._woken.wait(pauses.next_s())

    def _rest(self) -> bool:
        """Sleep until there is something to do; true if the thread is to end."""
        if self._woken.wait(IDLE_S if self._sinks else 0):
            return False
        with self._lock:
            if self._woken.is_set():
                return False
            self._thread = None
            self._pool.clear()
            return True

    def _is_busy(self, quiet_s: float) -> bool:
        routes = self._routes.values()
        if self._num_expected > 0 or any(route.sources for route in routes):
            return True
        if any(sending.source.wanted for route in routes for sending in route.sending):
            return True
        return quiet_s < LINGER_S and (bool(self._arriving) or any(route.sending for route in routes))

    def _attached(self) -> list[Sink]:
        with self._lock:
            return list(self._sinks.values())

    def _turn(self) -> bool:
        """Do what can be done now; false if that was nothing."""
        while self._new:
            source = self._new.popleft()
            self._routes.setdefault(source.destination, _Route()).sources.append(source)
        moved = False
        for destination, route in self._routes.items():
            route.forget_unwanted()
            try:
                moved |= self._end_sends(route)
                moved |= self._start_sends(destination, route)
            except Exception as error:  # whatever MPI reports concerns this process
                self._fail_route(route, _as_failure(error, f"cannot send to its rank {destination}"))
        moved |= self._offer_early()
        moved |= self._start_receives()
        moved |= self._end_receives()
        return moved

    def _start_sends(self, destination: int, route: _Route) -> bool:
        started = False
        num_refusals = 0
        while len(route.sending) < WINDOW and num_refusals < len(route.sources):
            source = route.sources.popleft()
            buffer = self._pool.take()
            size_bytes = source.fill(buffer)
            if size_bytes == 0:
                self._pool.give(buffer)
                continue
            route.sources.append(source)
            if size_bytes is None:
                self._pool.give(buffer)
                num_refusals += 1
                continue
            route.sending.append(_Sending(self._transport.send(buffer[:size_bytes], destination), buffer, source))
            started = True
        return started

    def _end_sends(self, route: _Route) -> bool:
        ended = False
        while route.sending:
            try:
                if not route.sending[0].request.Test():
                    break
            except Exception:
                source = route.sending.popleft().source
                route.sources.append(source)  # which is told, though it may have no more to send
                raise
            self._pool.give(route.sending.popleft().buffer)
            ended = True
        return ended

    def _fail_route(self, route: _Route, error: Exception) -> None:
        """Requests that are still open keep their buffers."""
        sources = [*route.sources, *(sending.source for sending in route.sending)]
        route.sources.clear()
        for source in dict.fromkeys(sources):
            source.failed(error)

    def _start_receives(self) -> bool:
        started = False
        try:
            while (found := self._transport.find()) is not None:
                size_bytes = found.size_bytes
                fits = size_bytes <= HEADER_BYTES + CHUNK_BYTES
                buffer = self._pool.take() if fits else memoryview(bytearray(size_bytes))
                request = found.message.receive(buffer[:size_bytes])
                self._arriving.append(_Arriving(request, buffer, size_bytes, found.source))
                started = True
        except Exception as error:  # whatever MPI reports here may concern anybody
            self._fail_sinks(_as_failure(error, "cannot receive"), lambda _: True)
        return started

    def _end_receives(self) -> bool:
        arriving, self._arriving = self._arriving, []
        for each in arriving:
            try:
                here = each.request.Test()
            except Exception as error:  # as in ``_turn``
                failure = _as_failure(error, f"cannot receive from its rank {each.source}")
                self._fail_sinks(failure, lambda sink, source=each.source: sink.origin == source)  # type: ignore[misc]
                continue
            if here:
                self._arrived(each)
            else:
                self._arriving.append(each)
        return len(self._arriving) < len(arriving)

    def _arrived(self, arrived: _Arriving) -> None:
        chunk = read_chunk(arrived.buffer[: arrived.size_bytes])
        if chunk is None:
            if not self._warned:
                logger.warning(
                    "%s: rank %d of the MPI job uses our tag; its message was lost", self._name, arrived.source
                )
            self._warned = True
        elif not self._offer(chunk):
            self._early.append((chunk, arrived.buffer))
            return
        if len(arrived.buffer) == HEADER_BYTES + CHUNK_BYTES:
            self._pool.give(arrived.buffer)

    def _offer(self, chunk: Chunk) -> bool:
        with self._lock:
            sink = self._sinks.get(chunk.key)
        return sink is None or sink.take(chunk)  # None: of a world that has ended

    def _offer_early(self) -> bool:
        """Their header may have come meanwhile."""
        early, self._early = self._early, []
        for chunk, buffer in early:
            if self._offer(chunk):
                self._pool.give(buffer)
            else:
                self._early.append((chunk, buffer))
        return len(self._early) < len(early)

    def _fail_sinks(self, error: Exception, concerns: Callable[[Sink], bool]) -> None:
        for sink in self._attached():
            if concerns(sink):
                sink.failed(error)


def _as_failure(error: Exception, what: str) -> MpiError:
    """Return an error without a traceback, which would keep buffers alive."""
    return MpiError(f"MPI {what}: {error}")

"""A worker's end of the connection to the agent that launched it: what that says, and what it is told."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from ...errors import HandshakeError, ProtocolError, ReasonError
from ...wire.connection.connection import Connection
from ...wire.connection.frames import Header, Kind, pack_frame
from ...wire.endpoints.dialer import DialError, dial
from ...wire.messages import decode
from ...wire.progress.operation import Operation, settler
from ...wire.progress.thread import ProgressThread
from .launched import Launch, Place, PlaceTold, WorkerHello
from .news import WORKER_NEWS, News, Progressed

logger = logging.getLogger(__name__)

DIAL_S = 30.0  # an agent may be slow, on a busy machine
RETRY_S = 0.02
GIVE_UP_S = 2.0  # an agent that cannot even be called for so long is gone
PROGRESS_S = 0.2  # how often the heartbeats of a program are passed on
MAX_UNSENT = 1024  # news, before the connection stands


class AgentLostError(ReasonError):
    """The agent that launched this process cannot be reached (``reason``), and will not be again."""

    def __str__(self) -> str:
        return f"the agent that launched this process is gone ({self.reason}); the launcher ends this process"


class LaunchLink:
    """A connection sink with a thread of its own; all methods work from any thread, and none blocks but ``close``."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._answered: Operation[None] = Operation()  # the agent has said the place, or that there is none yet
        self._loop = ProgressThread(f"multiworld-launch-{launch.worker[:16]}")
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._place: Place | None = None
        self._unsent: deque[bytes] = deque(maxlen=MAX_UNSENT)
        self._waiting: set[Operation[None]] = set()
        self._listeners: list[Callable[[Place], None]] = []
        self._end_listeners: list[Callable[[], None]] = []
        self._lost: str | None = None  # why
        self._give_up_at = math.inf  # until it could not be called
        self._progress_at = 0.0
        self._dial()

    def __repr__(self) -> str:
        return f"<LaunchLink worker={self.launch.worker!r} place={self._place}{' lost' if self._lost else ''}>"

    @property
    def place(self) -> Place | None:
        """The last place that the agent said."""
        return self._place

    @property
    def failure(self) -> AgentLostError | None:
        """Set once the agent is gone."""
        return None if self._lost is None else AgentLostError(self._lost)

    def first_word(self, timeout_s: float) -> Operation[None]:
        """Return what is done when the agent has said the place, or that there is none yet, or the time is over."""
        operation: Operation[None] = Operation()
        timer = self._loop.call_later(timeout_s, settler(operation))
        operation.add_callback(lambda _: timer.cancel())
        self._answered.add_callback(settler(operation))
        return operation

    def next_place(self, place: Place | None) -> Operation[None]:
        """Return what is done as soon as the place is another than this. Fails with AgentLostError."""
        operation: Operation[None] = Operation()
        operation.on_cancel = partial(self._stop_waiting, operation)
        with self._lock:
            if self._lost is None and self._place == place:
                self._waiting.add(operation)
                return operation
        failure = self.failure
        if failure is not None:
            operation.fail(failure)
        else:
            operation.succeed(None)
        return operation

    def tell(self, news: News) -> None:
        """Send news (see ``news``), as soon as the connection stands. Dropped if the agent is gone."""
        frame = pack_frame(Kind.WORKER_NEWS, WORKER_NEWS.encode(news))
        with self._lock:
            if self._connection is not None:
                self._connection.send(frame)
            elif self._lost is None:
                self._unsent.append(frame)

    def progress(self) -> None:
        """Tell the agent that the program goes on; more often than the agent needs to hear it costs nothing."""
        now = time.monotonic()
        if now >= self._progress_at:
            self._progress_at = now + PROGRESS_S
            self.tell(Progressed())

    def listen(self, on_place: Callable[[Place], None], on_end: Callable[[], None]) -> Place | None:
        """Return the place, and from now on call with each other one, then once with the end: on the link's thread."""
        with self._lock:
            place, lost = self._place, self._lost
            if lost is None:
                self._listeners.append(on_place)
                self._end_listeners.append(on_end)
        if lost is not None:
            on_end()
        return place

    def unlisten(self, on_place: Callable[[Place], None], on_end: Callable[[], None]) -> None:
        with self._lock:
            if on_place in self._listeners:
                self._listeners.remove(on_place)
                self._end_listeners.remove(on_end)

    def close(self) -> None:
        """End the connection and the thread. Idempotent."""
        connection = self._connection
        if connection is not None:
            connection.abort()
        self._end("it was closed here")
        self._loop.stop()

    def abandon_after_fork(self) -> None:
        """In a forked child: the agent's connection is the parent's."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._lost = "this process was forked from the one that was connected to it"
        self._loop.abandon_after_fork()

    def _dial(self) -> None:
        dialing = dial(
            self._loop,
            "\0" + self.launch.agent,
            0,
            WorkerHello(purpose="worker", worker=self.launch.worker),
            self.launch.token.encode(),
            self,
            timeout_s=DIAL_S,
        )
        dialing.add_callback(self._dialed)

    def _dialed(self, dialing: Operation[Connection]) -> None:
        error, now = dialing.error, time.monotonic()
        if error is None:
            self._connected(dialing.result())
            return
        self._give_up_at = min(self._give_up_at, now + GIVE_UP_S)
        may_answer_yet = isinstance(error, DialError) and not error.is_refused and now < self._give_up_at
        if may_answer_yet and self._lost is None:
            self._loop.call_later(RETRY_S, self._dial)
        elif isinstance(error, HandshakeError):
            self._end(f"it refuses: {error}")
        else:
            self._end(str(error))

    def _connected(self, connection: Connection) -> None:
        with self._lock:
            if self._lost is None:
                self._connection = connection
                for frame in self._unsent:
                    connection.send(frame)
                self._unsent.clear()
        if self._lost is not None:
            connection.abort()

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = reason
            waiting, self._waiting = self._waiting, set()
            listeners, self._end_listeners = self._end_listeners, []
            self._listeners.clear()
            self._connection = None
            self._unsent.clear()
        for operation in [self._answered, *waiting]:
            operation.fail(AgentLostError(reason))
        for on_end in listeners:
            on_end()

    def _placed(self, place: Place | None) -> None:
        with self._lock:
            is_new = place is not None and place != self._place
            if is_new:
                self._place = place
                waiting, self._waiting = self._waiting, set()
                listeners = list(self._listeners)
        if is_new:
            assert place is not None
            logger.info("the launcher says: rank %d of %d, generation %d", *_in_words(place))
            for operation in waiting:
                operation.succeed(None)
            for on_place in listeners:
                _call(on_place, place)
        self._answered.succeed(None)

    def _stop_waiting(self, operation: Operation[None]) -> None:
        with self._lock:
            self._waiting.discard(operation)

    # connection sink
    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes or header.kind != Kind.WORKER_PLACE:
            raise ProtocolError(f"frame kind {header.kind} from the agent")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        self._loop.call_soon(partial(self._placed, decode(PlaceTold, meta).place))

    def lost(self, reason: str) -> None:
        self._loop.call_soon(partial(self._end, reason))  # after what it said last


def _in_words(place: Place) -> tuple[int, int, int]:
    return place.rank, place.world_size, place.generation


def _call(on_place: Callable[[Place], None], place: Place) -> None:
    try:
        on_place(place)
    except Exception:  # the program's own; the others are told all the same
        logger.exception("callback %r for a change of the membership failed", on_place)

"""The commands of one stream to a node, as its master has them: queued, sent in batches, followed to their end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from ...errors import MultiworldError
from ...world.world import World
from ..lane import send
from ..protocol import lanes, records
from ..protocol.messages import Executed
from .command_queue import Command, CommandQueue
from .failures import Failures
from .origins import Origin, origin
from .plainly import plainly
from .room import Room

BATCH: Final = 128
"""Commands that are sent together."""
FIRST_BATCH: Final = 8
"""And so many after a wait, as the node has nothing to do then; twice as many with each batch after it, up to BATCH."""
TICK_S: Final = 0.001
"""Commands wait at most so long for others, if nobody waits for them; twice as long where others were just sent."""
MAX_TICK_S: Final = 0.004
"""And so long, once ticks found that all had been sent by who waits for what comes of it."""
MAX_IDLE_TICKS: Final = 8
"""After so many of those there are no ticks, until something is issued."""
QUIET: Final = 4
"""A tick counts as so many if nothing at all was issued since the last one. To begin with ticks again costs as much as
one or two of them: a wake-up of a thread."""


@dataclass
class SessionStatistics:
    """Sizes in bytes."""

    num_batches: int = 0
    sent_bytes: int = 0
    fetched_bytes: int = 0


class CommandStream:
    """``definitions``: what this stream has defined, by number. ``is_busy``: whether the node has something to
    do, and a tick is to come: ``queued`` need then be called for a full batch alone.

    ``is_held``: whether nothing is sent for now, but kept in the queue's log. ``executed_to``: the node has executed
    all records before this position, in its present generation.

    Commands are appended to ``queue`` from any thread; ``queued`` is called behind them.
    """

    def __init__(
        self,
        number: int,
        node: int,
        world: World,
        statistics: SessionStatistics,
        lock: threading.RLock,
        is_over: Callable[[], bool],
        lose: Callable[[Exception], None],
        freed: list[int],
    ) -> None:
        """``lock`` and ``freed``: of the session, whose streams share them. ``lose`` is called with what broke."""
        self.number = number
        self.last_position: int | None = None  # of its last record, once it is closed
        self.captured_by: int | None = None  # the thread whose commands are recorded: all of them have to come here
        self.queue = CommandQueue(freed)
        self.failures = Failures(node, self.queue)
        self.room = Room()
        self.definitions: dict[Hashable, bytes] = {}
        self.is_held = False
        self.executed_to = 0
        self.is_busy = False
        self._ticks = False  # whether a tick is to come
        self._next_batch = FIRST_BATCH
        self._num_idle_ticks = self._sent_at_tick = 0
        self._world, self._statistics = world, statistics
        self._lock = lock  # one batch is taken and sent at a time
        self._is_over, self._lose = is_over, lose

    # ---- commands

    def emit(self, record: bytes, operation: str, depth: int = 1) -> None:
        """Queue one record. A lost node takes nothing any more: who waits for the outcome learns it."""
        self.queue.append((record, operation, origin(sys._getframe(depth))))
        self.queued()

    def queued(self) -> None:
        """Something was appended to the queue: send it, now or a moment later."""
        size = len(self.queue.waiting)
        if size >= BATCH or self._is_over():
            self.flush()
        elif not self.is_busy:
            if not self._ticks:
                self._ticks, self._num_idle_ticks = True, 0
                self._world.later(TICK_S, self._tick)
            if size >= self._next_batch:
                self._next_batch *= 2
                self.is_busy = self._next_batch >= BATCH
                self.flush()

    def begin_anew(self) -> None:
        """Somebody waits for what was sent: the node has nothing to do soon, and gets what comes next at once."""
        self.is_busy, self._next_batch = self._is_over(), FIRST_BATCH

    def flush(self, *, may_wait: bool = True) -> None:
        """Send what is queued. Waits while the node is too far behind."""
        if self._is_over():
            self.discard()
            return
        if self.is_closed:
            return
        with self._lock:
            batch, _ = self.queue.take()
            if not batch:
                return
            self._send(batch)
        if may_wait:
            self.wait_for_room()

    def wait_for_room(self) -> None:
        """Wait while the node is too far behind."""
        if self._is_behind():
            self.room.wait(self._is_behind)

    def request(self, last: Command) -> int:
        """Send what is queued with ``last`` behind it, which is answered; return the position of that."""
        with self._lock:
            batch, position = self.queue.take(last)
            self._send(batch)
        self.begin_anew()
        return position

    def emit_known(self, record: bytes, operation: str, place: Origin) -> int:
        """Queue one record; return its position, which is confirmed as soon as the node says so."""
        command = (record, operation, place)
        with self._lock:
            self.queue.append(command)
            waiting = self.queue.waiting
            places = (at for at in range(len(waiting) - 1, -1, -1) if waiting[at] is command)
            position = self.queue.position + next(places, 0)  # a lost node has taken nothing
        self.queued()
        return position

    @property
    def takes_commands(self) -> bool:
        """False: it was closed, the node is lost for good, or the connection ended here."""
        return not self.is_closed and not self._is_over()

    @property
    def is_closed(self) -> bool:
        return self.last_position is not None

    @property
    def behind(self) -> int:
        """The position behind all that was issued."""
        with self._lock:
            return self.queue.behind

    @property
    def is_settled(self) -> bool:
        """Whether all that was issued is executed, and what failed of it is known."""
        return self.queue.told >= self.behind

    def is_confirmed(self, position: int) -> bool:
        return self.queue.confirmed > position

    def wait_confirmed(self, position: int) -> None:
        """Wait until the record at that position is executed, or the node is lost."""
        self.room.wait_while(lambda: not self.is_confirmed(position) and not self._is_over())

    def close(self) -> None:
        """Send what is queued, and the last record behind it. No thread may use the stream meanwhile."""
        with self._lock:
            if self.is_closed or self._is_over():
                return
            batch, self.last_position = self.queue.take((records.end(), "close", None))
            self._send(batch)

    def discard(self) -> None:
        """The node is lost, or the connection ended: forget all, and send nothing any more."""
        with self._lock:
            self.queue.discard()
        self.is_busy = True

    def _tick(self) -> None:
        """On the progress thread, which must not wait: send what waits, and come again while something is issued."""
        if self._is_over() or self.is_closed:
            return
        if self.queue.waiting:
            self._num_idle_ticks = 0
        else:
            self._num_idle_ticks += QUIET if self.queue.position == self._sent_at_tick else 1
        if self.queue.position == self._sent_at_tick:  # else full batches are sent just now: what waits is young
            self.flush(may_wait=False)
        self._sent_at_tick = self.queue.position
        if self._num_idle_ticks >= MAX_IDLE_TICKS:
            self._ticks = False
            self.begin_anew()
            if not self.queue.waiting:  # looked at last: what is appended from now on sets the timer
                return
            self._ticks = True
        self._world.later(min(TICK_S * 2**self._num_idle_ticks, MAX_TICK_S), self._tick)

    def use(self, world: World) -> None:
        """Send over this world from now on."""
        self._world = world

    def _send(self, batch: bytes) -> None:
        if len(batch) > lanes.INLINE_BYTES:
            self.room.hold_until(self.queue.position, len(batch))
        if self.is_held:
            return
        try:
            self.transmit(batch)
        except MultiworldError as error:
            self._lose(error)

    @plainly
    def transmit(self, batch: bytes) -> None:
        """Send records. Raises the error of a world that is broken."""
        self._statistics.num_batches += 1
        send(self._world, bytearray(batch), lanes.NODE, lanes.FIRST_STREAM + self.number)

    # ---- how far the node is behind

    def executed(self, said: Executed) -> None:
        """The node has executed some of it."""
        self.executed_to = said.position
        for failed in said.failures:
            if failed.position >= self.queue.told:  # else it was told before, by the node that was lost since
                self.failures.note(failed)
        with self._lock:
            self.queue.tell(said.position)
        self.room.confirm(said.position)

    def confirm(self, position: int) -> None:
        """All records before ``position`` were executed: an answer says so, and may be here before the news of them."""
        with self._lock:
            self.queue.confirm(position)
        self.room.confirm(position)

    def _is_behind(self) -> bool:
        if self._is_over():
            return False
        log = self.queue.log
        return self.room.is_behind(self.queue.num_unconfirmed) or (log is not None and log.is_at_bound)

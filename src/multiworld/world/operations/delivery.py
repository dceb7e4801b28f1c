"""Hands every message of one rank on one tag to a callback, on one asyncio loop: for those who always listen.

A task that receives in a loop costs a future and two turns of the event loop per message, and the connection goes back
to the progress thread whenever nothing has come for a few milliseconds, which costs thread switches.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ...channel.base import Payload
from ...channel.payload.small_message import Received
from ...errors import MultiworldError, again
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import OperationCancelled, outcome, running_loop

logger = logging.getLogger(__name__)

NUM_AHEAD: Final = 2
"""Receives: a large message needs one before it comes, and comes while the one before it is worked on."""
QUIET_S: Final = 5e-3
"""After such a pause a process finds little in its caches: what can be is done before the next message comes."""
TURN_S: Final = 0.005  # a peer that sends faster than this delivers would keep the loop from all else


class MessageSource(Protocol):
    """What a delivery asks of a world."""

    def start_recv_tensors(self, src: int, tag: int, timeout_s: float | None) -> Operation[Payload]: ...

    def start_recv_bytes(self, src: int, tag: int, timeout_s: float | None) -> Operation[Received]: ...

    def keep_reading(self, loop: asyncio.AbstractEventLoop, peer: int) -> None: ...

    def prepare(self, peer: int) -> None: ...


class Delivery:
    """From ``start`` to ``stop``, on one event loop; made by ``World.deliver``."""

    def __init__(
        self,
        world: MessageSource,
        src: int,
        tag: int,
        deliver: Callable[[Received], None],
        ended: Callable[[Exception], None],
        as_bytes: bool = False,
    ) -> None:
        self._world, self._src, self._tag = world, src, tag
        self._as_bytes = as_bytes
        self._deliver, self._ended = deliver, ended
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Operation[Received]] = deque()
        self._last: Exception | None = None
        """Why no more can be received than what is pending."""
        self._going = self._over = False
        self._elsewhere = False
        """A message was read by another thread than the loop's, which is to read the next ones."""
        self._quiet_since = -math.inf  # the last message was dealt with

    def start(self) -> None:
        """What is there already comes in the next turn of the loop: only then the caller can stop this."""
        self._going = True
        for _ in range(NUM_AHEAD):
            self._receive()
        self._going = False
        self._keep_reading()
        if self._last is not None or self._pending[0].done:
            self._loop.call_soon(self._go_on)

    def stop(self) -> None:
        """Deliver nothing more; messages that have come and were not delivered wait for the next receive. Idempotent.

        On the loop's thread.
        """
        self._over = True
        while self._pending:
            self._pending.pop().cancel_or_undo(OperationCancelled())  # the last first: each goes before those put back

    def _receive(self) -> None:
        if self._last is None:
            try:
                receive = self._start_receive()
            except MultiworldError as error:
                self._last = again(error)  # as it is, it would keep whoever called this
            else:
                self._pending.append(receive)
                receive.add_callback(self._received)

    def _start_receive(self) -> Operation[Received]:
        if self._as_bytes:
            return self._world.start_recv_bytes(self._src, self._tag, None)
        return self._world.start_recv_tensors(self._src, self._tag, None)  # type: ignore[return-value]

    def _received(self, _: Operation[Received]) -> None:
        """On whichever thread the message came."""
        if running_loop() is self._loop:
            if not self._going:
                self._go_on()
            return
        self._elsewhere = True
        try:
            self._loop.call_soon_threadsafe(self._go_on)
        except RuntimeError:  # the loop was closed: nobody listens any more
            return

    def _go_on(self) -> None:
        """Deliver what has come, for a while."""
        if self._going:
            return
        self._going = True
        try:
            self._deliver_for_a_turn()
        finally:  # an interrupt amid a delivery must not leave the rest undelivered
            self._going = False
        if self._last is not None and not self._pending:
            self._end(self._last)
        elif self._elsewhere and not self._over:
            self._elsewhere = False
            self._keep_reading()

    def _deliver_for_a_turn(self) -> None:
        began = now = time.monotonic()
        was_quiet = began - self._quiet_since > QUIET_S
        has_delivered = False
        while self._pending and self._pending[0].done and not self._over:
            if now > began + TURN_S:
                self._loop.call_soon(self._go_on)
                break
            self._take(self._pending.popleft())
            if not self._over:
                self._receive()
            has_delivered = True
            now = self._quiet_since = time.monotonic()
        if has_delivered and was_quiet and self._as_bytes:
            self._loop.call_soon(self._prepare)  # behind those whom this woke

    def _prepare(self) -> None:
        if not self._over:
            self._world.prepare(self._src)

    def _keep_reading(self) -> None:
        try:
            self._world.keep_reading(self._loop, self._src)
        except OSError as error:  # there is no descriptor for it
            logger.debug("the progress thread goes on reading what rank %d sends: %s", self._src, error)

    def _take(self, receive: Operation[Received]) -> None:
        try:
            self._deliver(outcome(receive))
        except Exception as error:  # of the world, or of the callback, whose defect ends what it is told
            self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._over:
            self.stop()
            self._ended(error)

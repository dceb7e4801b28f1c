"""Hands every message of one rank on one tag to a callback, on one asyncio loop: for those who always listen.

A task that receives in a loop costs a future and two turns of the event loop per message, and the connection goes back
to the progress thread whenever nothing has come for a few milliseconds, which costs thread switches.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..channel.base import Payload
from ..errors import MultiworldError
from ..wire.operation import Operation
from ..wire.waiting import OperationCancelled, outcome

if TYPE_CHECKING:
    from .world import World

__all__ = ["Delivery"]

logger = logging.getLogger(__name__)

TURN_S = 0.005  # a peer that sends faster than this delivers would keep the loop from all else


class Delivery:
    """From ``start`` to ``stop``, on one event loop; made by ``World.deliver``."""

    def __init__(
        self,
        world: World,
        src: int,
        tag: int,
        deliver: Callable[[Payload], None],
        ended: Callable[[Exception], None],
    ) -> None:
        self._world, self._src, self._tag = world, src, tag
        self._deliver, self._ended = deliver, ended
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._pending: Operation[Payload] | None = None
        self._starting = False
        self._over = False

    def start(self) -> None:
        """What is there already comes in the next turn of the loop: only then the caller can stop this."""
        try:
            self._wait_for(self._world.start_recv_tensors(self._src, self._tag, None))
        except MultiworldError as error:
            self._loop.call_soon(self._end, error)

    def stop(self) -> None:
        """Deliver nothing more; a message that has come and was not delivered waits for the next receive. Idempotent.

        On the loop's thread.
        """
        self._over = True
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel_or_undo(OperationCancelled())

    def _receive(self) -> None:
        """Deliver what is there, for a while, then wait for the next message."""
        until = time.monotonic() + TURN_S
        while not self._over:
            try:
                receive = self._world.start_recv_tensors(self._src, self._tag, None)
            except MultiworldError as error:
                self._end(error)
                return
            if not receive.done or time.monotonic() > until:
                self._wait_for(receive)
                return
            self._take(receive)

    def _wait_for(self, receive: Operation[Payload]) -> None:
        """Deliver it in another turn of the loop, if it is done already."""
        self._pending = receive
        self._starting = True
        receive.add_callback(self._received)
        self._starting = False
        try:
            self._world.keep_reading(self._loop, self._src)
        except OSError as error:  # there is no descriptor for it
            logger.debug("the progress thread goes on reading what rank %d sends: %s", self._src, error)

    def _received(self, receive: Operation[Payload]) -> None:
        """On whichever thread the message came."""
        if threading.get_ident() == self._thread and not self._starting and self._loop.is_running():
            self._go_on(receive)
            return
        try:
            self._loop.call_soon_threadsafe(self._go_on, receive)
        except RuntimeError:  # the loop was closed: nobody listens any more
            return

    def _go_on(self, receive: Operation[Payload]) -> None:
        if self._pending is receive:
            self._take(receive)
            self._receive()

    def _take(self, receive: Operation[Payload]) -> None:
        self._pending = None
        try:
            self._deliver(outcome(receive))
        except Exception as error:  # of the world, or of the callback, whose defect ends what it is told
            self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._over:
            self._over = True
            self._ended(error)

"""A member's end of its world with the controller: it reports, obeys, and comes back when the controller does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from ...errors import MessageError, MultiworldError
from ...world.manager import WorldManager
from ...world.world import World
from ..errors import what_happened
from .messages import CONTROL_BACKEND, CONTROLLER_RANK, MEMBER_RANK, as_bytes, as_tensor, control_world
from .orders import ORDERS, MemberOrder
from .reports import MemberReport, reports_of

logger = logging.getLogger(__name__)

JOIN_S = 5.0
AGAIN_S = 0.2


class Line(Protocol):
    """Where a member says what happens to it."""

    def tell(self, report: MemberReport) -> None: ...


class ControlLine:
    """``hello`` gives what is said first, each time; ``on_order`` gets the orders. On one event loop."""

    def __init__(
        self,
        manager: WorldManager,
        member: str,
        store: str,
        *,
        hello: Callable[[], MemberReport],
        on_order: Callable[[MemberOrder], None],
    ) -> None:
        self._manager, self._member, self._store = manager, member, store
        self._hello, self._on_order = hello, on_order
        self._reports = reports_of(member)
        self._outgoing: asyncio.Queue[MemberReport] = asyncio.Queue()
        self._connected = False

    def tell(self, report: MemberReport) -> None:
        """Say something; dropped while there is no controller, which is told all that counts by the next hello."""
        if self._connected:
            self._outgoing.put_nowait(report)

    async def run(self) -> None:
        """Keep up the connection until cancelled."""
        while True:
            try:
                world = await self._manager.join(
                    control_world(self._member),
                    rank=MEMBER_RANK,
                    world_size=2,
                    store=self._store,
                    backend=CONTROL_BACKEND,
                    timeout_s=JOIN_S,
                )
            except MultiworldError as error:
                logger.debug("no controller yet: %s", what_happened(error))
                await asyncio.sleep(AGAIN_S)
                continue
            await self._talk(world)

    async def _talk(self, world: World) -> None:
        self._outgoing = asyncio.Queue()
        self._connected = True
        self._outgoing.put_nowait(self._hello())
        saying = asyncio.ensure_future(self._say(world))
        try:
            while True:
                self._hear(as_bytes(await world.recv_tensors(CONTROLLER_RANK)))
        except MultiworldError as error:
            logger.info("the controller is gone; serving on: %s", what_happened(error))
            world.abort()
        except asyncio.CancelledError:
            saying.cancel()
            await world.leave()
            raise
        finally:
            self._connected = False
            saying.cancel()

    def _hear(self, data: bytes) -> None:
        try:
            order = ORDERS.decode(data)
        except MessageError as error:
            logger.warning("%s does not understand an order: %s", self._member, error)
            return
        self._on_order(order)

    async def _say(self, world: World) -> None:
        try:
            while True:
                await world.send_tensors(as_tensor(self._reports.encode(await self._outgoing.get())), CONTROLLER_RANK)
                self._outgoing.task_done()
        except MultiworldError:  # the receiving side sees it too
            return

    async def flush(self, timeout_s: float) -> None:
        """Wait until what was told has gone out, at most so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._outgoing.join(), timeout_s)

"""The controller's ends of the worlds that it shares with its members: one task each, from the join to the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ...errors import JoinError, JoinTimeoutError, MessageError, MultiworldError, PeerDiedError, PeerLeftError
from ...world.manager import WorldManager
from ...world.state import WorldState
from ...world.world import World
from ..errors import what_happened
from ..member.messages import CONTROL_BACKEND, CONTROLLER_RANK, MEMBER_RANK, as_bytes, as_tensor, control_world
from ..member.orders import ORDERS, MemberOrder
from ..member.reports import MemberReport, reports_of

logger = logging.getLogger(__name__)

JOIN_S = 10.0
AGAIN_S = 0.1
LEAVE_S = 0.5


class LineOwner(Protocol):
    """What lines tell the controller."""

    def member_said(self, member: str, report: MemberReport) -> None: ...

    def member_lost(self, member: str, why: str, died: bool) -> None:
        """The world broke. ``died``: because its process ended."""


class WorldLine:
    """The world with one member: joined until it comes, and again when it broke and ``comes_again`` says so."""

    def __init__(
        self, owner: LineOwner, manager: WorldManager, store: str, member: str, comes_again: Callable[[], bool]
    ) -> None:
        self._owner, self._manager, self._store, self._member = owner, manager, store, member
        self._comes_again, self._reports = comes_again, reports_of(member)
        self._outgoing: asyncio.Queue[MemberOrder] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, order: MemberOrder) -> None:
        self._outgoing.put_nowait(order)

    def close(self) -> asyncio.Task[None]:
        """Leave the world; done when the returned task is."""
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            world = await self._join()
            self._outgoing = asyncio.Queue()  # what was said to a process that is gone is nobody's
            error = await self._talk(world)
            died = isinstance(error, (PeerDiedError, PeerLeftError))
            self._owner.member_lost(self._member, f"{type(error).__name__}: {error}", died)
            if not self._comes_again():
                return

    async def _join(self) -> World:
        while True:
            try:
                return await self._manager.join(
                    control_world(self._member),
                    rank=CONTROLLER_RANK,
                    world_size=2,
                    store=self._store,
                    backend=CONTROL_BACKEND,
                    timeout_s=JOIN_S,
                )
            except JoinTimeoutError:
                continue  # how long is too long is decided elsewhere
            except JoinError as error:
                logger.warning("the world with %s could not be formed: %s", self._member, what_happened(error))
                await asyncio.sleep(AGAIN_S)

    async def _talk(self, world: World) -> MultiworldError:
        """Say and hear until the world breaks, and return why it did."""
        saying = asyncio.get_running_loop().create_task(self._say(world))
        try:
            while True:
                self._hear(as_bytes(await world.recv_tensors(MEMBER_RANK)))
        except MultiworldError as error:
            return error
        except asyncio.CancelledError:
            if world.state is WorldState.ACTIVE:
                await world.leave(LEAVE_S)
            raise
        finally:
            saying.cancel()
            world.abort()

    def _hear(self, data: bytes) -> None:
        try:
            report = self._reports.decode(data)
        except MessageError as error:
            logger.warning("what %s says is not understood: %s", self._member, error)
            return
        self._owner.member_said(self._member, report)

    async def _say(self, world: World) -> None:
        try:
            while True:
                await world.send_tensors(as_tensor(ORDERS.encode(await self._outgoing.get())), MEMBER_RANK)
        except MultiworldError:  # the receiving side sees it too
            return


class AttachedLine:
    """The line to a member that lives in the controller's own process."""

    def __init__(self, owner: LineOwner, member: str, on_order: Callable[[MemberOrder], None]) -> None:
        self._owner, self._member, self._on_order = owner, member, on_order
        self._loop = asyncio.get_running_loop()

    def send(self, order: MemberOrder) -> None:
        """Of the controller: it is heard in the next turn of the loop, so that neither is called by the other."""
        self._loop.call_soon(self._on_order, order)

    def tell(self, report: MemberReport) -> None:
        """Of the member."""
        self._loop.call_soon(self._owner.member_said, self._member, report)

    def close(self) -> None:
        """Of the member: it leaves."""
        self._owner.member_lost(self._member, "it left", True)

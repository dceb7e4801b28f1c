"""A join that goes by what the launcher says: it is tried again whenever this process is given another place."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from ...errors import JoinError
from ...wire.progress.operation import Operation, StepsCancelled, drive, settler
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import on_progress_thread, pause
from ..launcher.link import AgentLostError, LaunchLink
from ..world import World
from .formation import Formation
from .join_request import JoinRequest, JoinTarget, target_of

LOOK_S = 0.05
NO_PLACE = "the launcher has given this process no place in the job"
NO_STORE = "the launcher has no store for the job at present, so nobody was met"


class ElasticJoin:
    """The steps of one join under the launcher; run ``form`` with ``drive``."""

    def __init__(self, request: JoinRequest, formation: Formation, launcher: LaunchLink, loop: ProgressThread) -> None:
        self._request, self._formation, self._launcher, self._loop = request, formation, launcher, loop

    async def form(self, attempt: Callable[[], Coroutine[Operation[Any], None, World]]) -> World:
        """Return the active world. Fails with JoinError, or as the awaited operation is cancelled.

        ``attempt`` makes the steps that form it by the formation's present target, and, cancelled, leave nothing.
        """
        try:
            while True:
                target = await self._target()
                self._formation.aim(target)
                world = await self._unless_moved(target, drive(attempt()))
                if world is not None:
                    return world
        except AgentLostError as error:
            raise JoinError(self._request.name, str(error)) from error

    async def _target(self) -> JoinTarget:
        """Wait for a place, and for a store there."""
        while True:
            if self._launcher.failure is not None:
                raise self._launcher.failure
            place = self._launcher.place
            target = None if place is None else target_of(self._request, place)
            if target is not None:
                return target
            self._formation.aim(None, NO_PLACE if place is None else NO_STORE)
            await self._launcher.next_place(place)
            await on_progress_thread(self._loop)

    async def _unless_moved(self, target: JoinTarget, forming: Operation[World]) -> World | None:
        """Return the world, or None if the launcher says something else meanwhile.

        If it was formed in that very moment, so it was for the others.
        """
        try:
            await self._until_moved(target, forming)
        except BaseException:
            forming.cancel(StepsCancelled())
            if forming.error is not None:
                raise
        forming.cancel(StepsCancelled())
        return None if isinstance(forming.error, StepsCancelled) else forming.result()

    async def _until_moved(self, target: JoinTarget, forming: Operation[World]) -> None:
        """Wait until the world is formed, or cannot be, or is tried by what is no longer so."""
        while not forming.done:
            place = self._launcher.place
            now = target_of(self._request, place)
            if now != target and not self._can_do_without(target, now):
                return
            news = self._launcher.next_place(place)
            look: Operation[None] = Operation() if now == target else pause(self._loop, LOOK_S)
            first: Operation[None] = Operation()
            for operation in (news, look, forming):
                operation.add_callback(settler(first))
            try:
                await first
            finally:
                news.cancel(StepsCancelled())
                look.cancel(StepsCancelled())
            await on_progress_thread(self._loop)  # the link's own thread has other things to do
            if news.error is not None and not isinstance(news.error, StepsCancelled):
                raise news.error

    def _can_do_without(self, target: JoinTarget, now: JoinTarget | None) -> bool:
        """Whether only the store is another, or gone, while its work is done."""
        is_same_but_for_store = now is None or replace(now, store_url=target.store_url) == target
        return self._formation.is_connecting and is_same_but_for_store

"""How the agents of a job meet at first: at their rendezvous, where one of them waits for the others."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Awaitable, Callable

from ...process.facts import find_listener
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import pause
from ..job.plan import JobPlan
from ..rendezvous.base import Address, Advice, Rendezvous
from .errors import MeetingError, MeetingPlaceError
from .links import AgentLinks
from .meeting import Call, Place, Reminder, Strangers

logger = logging.getLogger(__name__)


class FirstMeeting:
    """Progress thread only. ``follow(address)`` reports for duty with the agent there; ``node_rank`` is ours."""

    def __init__(
        self,
        loop: ProgressThread,
        plan: JobPlan,
        rendezvous: Rendezvous,
        links: AgentLinks,
        *,
        node_rank: int | None,
        follow: Callable[[Address], Awaitable[Call]],
    ) -> None:
        self._loop, self._plan, self._rendezvous, self._links = loop, plan, rendezvous, links
        self._node_rank, self._follow = node_rank, follow
        self._reminder = Reminder()
        self._strangers = Strangers()
        self.is_on = False

    async def attend(self) -> bool:
        """Return once this agent follows another, or whether it is to coordinate. A step coroutine.

        Raises MeetingError after the plan's time, and MeetingPlaceError if the agents can never meet there.
        """
        self.is_on = True
        try:
            return await self._attend()
        finally:
            self.is_on = False

    async def _attend(self) -> bool:
        began = time.monotonic()
        self._strangers = strangers = Strangers()
        while True:
            advice = await self._rendezvous.look(self._listen)
            if advice.leads:
                return True
            calls: list[tuple[Call, Place]] = []
            for address in [each for each in advice.call if each not in self._links.addresses]:
                call = await self._follow(address)
                if call is Call.FOLLOWED:
                    return False
                calls.append((call, self._place(address, advice)))
            now = time.monotonic()
            strangers.met(calls, now)
            why = strangers.why_hopeless(now)
            if why is not None:
                raise MeetingPlaceError(str(self._rendezvous), _describe_stranger(advice, why))
            if now - began > self._plan.join_timeout_s:
                raise MeetingError(str(self._rendezvous), self._plan.join_timeout_s, self._why_nobody())
            await pause(self._loop, self._rendezvous.retry_s)

    def remind(self, *, num_come: int | None, is_searching: bool) -> None:
        """Say now and then whom this agent waits for. ``num_come``: it coordinates, and more hosts must come."""
        is_waiting = num_come is not None or (is_searching and self.is_on)
        waited_s = self._reminder.look(time.monotonic(), is_waiting=is_waiting)
        if waited_s is None:
            return
        so_far = f"{waited_s:.0f} s of at most {self._plan.join_timeout_s:g} s so far"
        if num_come is not None:
            text = "%d of at least %d hosts have come; this one waits for others at %s (%s)"
            logger.warning(text, num_come, self._plan.min_nodes, self._rendezvous, so_far)
        else:
            text = "this host looks for the other agents of the job at %s (%s): %s"
            logger.warning(text, self._rendezvous, so_far, self._why_nobody())

    def _why_nobody(self) -> str:
        """Return, in a clause, what the last look has met, and what to see to."""
        there, why = self._strangers.what_is_there, self._rendezvous.why_nobody()
        return why if there is None else f"{there}; {why}"

    def _place(self, address: Address, advice: Advice) -> Place:
        is_here = address in advice.taken
        if self._plan.max_nodes == 1 or (is_here and self._node_rank == 0):
            return Place.OURS
        return Place.HERE if is_here else Place.ELSEWHERE

    def _listen(self, address: Address) -> bool:
        if address in self._links.addresses:
            return True
        try:
            self._links.open_door(address.host, address.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                shown = f"{address.host}:{address.port}"
                reason = f"this host cannot listen at {shown}: {error}"
                raise MeetingPlaceError(str(self._rendezvous), reason) from error
            return False  # another agent of this host was first, or something else
        return True


def _describe_stranger(advice: Advice, why: str) -> str:
    if not advice.taken:
        return f"something listens there that is no agent of a job: {why}"
    listener = find_listener(advice.taken[0].port)
    who = "something" if listener is None else f"{listener.name} (pid {listener.pid})"
    return f"EADDRINUSE, {who} listens there already, and is no agent of a job: {why}"

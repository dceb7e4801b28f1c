"""What an agent does when its coordinator is lost: it follows the next in line, or leads if that is itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ...wire.progress.operation import drive
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import pause
from ..job.plan import JobPlan
from ..job.roster import Roster, RosterEntry
from .callers import Callers
from .election import has_quorum, line_of_succession, may_have_gone_on
from .enlistment import WELCOME_S
from .errors import CutOffError, LeftBehindError
from .followers import FENCE_S
from .links import AgentLinks
from .meeting import Call
from .standing import Standing

RETRY_S = 0.05
CALLS_AT_ONCE = 64


class Follow(Protocol):
    """Report for duty with the agent there, or with the one that it names. Steps."""

    async def __call__(self, host: str, port: int, *, is_known: bool = False) -> Call: ...


class Succession:
    """One search after the coordinator of ``roster`` was lost. Progress thread only.

    ``dead``: the agents that are known to be; those that are found dead are added. ``is_closed``: the coordinator's end
    of our link was closed: it is dead, or has given us up. ``fence`` ends the workers of this host.
    """

    def __init__(
        self,
        loop: ProgressThread,
        plan: JobPlan,
        links: AgentLinks,
        callers: Callers,
        standing: Standing,
        roster: Roster,
        dead: set[str],
        *,
        agent_id: str,
        lease_s: float,
        follow: Follow,
        fence: Callable[[set[str]], None],
        is_closed: bool,
    ) -> None:
        self._loop, self._plan, self._links, self._callers = loop, plan, links, callers
        self._standing, self._roster, self._dead = standing, roster, dead
        self._id, self._lease_s, self._follow, self._fence = agent_id, lease_s, follow, fence
        self._is_closed = is_closed
        self._lost = roster.find(roster.coordinator)

    async def find(self) -> bool:
        """Return once this agent follows another, or, True, once it is to coordinate. A step coroutine.

        Cut off from most of the others, it ends its workers. Raises CutOffError when that lasts too long, and
        LeftBehindError when those that may have gone on without this agent are gone.
        """
        began = time.monotonic()
        self._standing.dead = self._dead
        while True:
            if self._is_closed and await self._has_followed(self._lost):
                return False
            leads = await self._go_through_the_line()
            if leads is not None:
                return leads
            if not self._standing.is_fenced and time.monotonic() - began > FENCE_S:
                self._fence(self._dead)
            if self._standing.is_fenced and await self._has_followed(self._lost):  # it may be back
                return False
            known_s = self._lease_s + WELCOME_S  # before that, somebody may only have been slow to answer
            if self._standing.is_fenced and time.monotonic() - began > max(self._plan.cut_off_s, known_s):
                raise CutOffError(time.monotonic() - began)
            await pause(self._loop, RETRY_S)

    async def _go_through_the_line(self) -> bool | None:
        """Return whether this agent is to coordinate, or None if nobody was found."""
        line = line_of_succession(self._roster, self._dead)
        me = self._roster.find(self._id)
        if me is not None and self._roster.coordinator == me.id:
            line.append(me)
        for place, heir in enumerate(line):
            if heir.id == self._id:
                return True if await self._is_elected(line[place + 1 :]) else None
            if await self._has_followed(heir):
                return False
        return None

    async def _has_followed(self, member: RosterEntry | None) -> bool:
        if member is None or member.id == self._id or member.id in self._dead:
            return False
        called = await self._follow(member.host, member.port, is_known=True)
        if called is Call.DEAD:
            self._dead.add(member.id)
        return called is Call.FOLLOWED

    async def _is_elected(self, behind: Sequence[RosterEntry]) -> bool:
        if not self._has_votes():  # those behind us may be dead too, and have no vote then
            self._dead |= await self._dead_among(behind)
        if not self._has_votes():
            return False
        if self._is_closed and self._lost is not None and self._lost.id not in self._dead:
            self._dead |= await self._dead_among([self._lost])  # a dying process may have taken our call
        standing = self._standing
        all_were_away = standing.is_stale and self._callers.are_stale
        if all_were_away and may_have_gone_on(self._roster, self._dead, before=standing.dead_before):
            raise LeftBehindError(len(self._dead))
        return True

    def _has_votes(self) -> bool:
        members = [each.id for each in self._roster.members]
        coordinated = self._roster.coordinator == self._id
        return has_quorum(members, votes={self._id} | self._callers.ids, dead=self._dead, coordinated=coordinated)

    async def _dead_among(self, members: Sequence[RosterEntry]) -> set[str]:
        dead: set[str] = set()
        for first in range(0, len(members), CALLS_AT_ONCE):
            some = members[first : first + CALLS_AT_ONCE]
            calls = [(each.id, drive(self._links.is_dead(each.host, each.port))) for each in some]
            dead |= {agent_id for agent_id, is_dead in calls if await is_dead}
        return dead

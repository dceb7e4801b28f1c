"""Which agent coordinates: this one follows another, or leads, or looks for one; and what it does when that is lost."""

from __future__ import annotations

import enum
import errno
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from ...errors import MultiworldError
from ...process.facts import find_listener
from ...store.tcp import TCPStoreServer
from ...wire.operation import Operation, StepsCancelled, drive
from ...wire.progress import ProgressThread
from ...wire.waiting import pause
from ...world.link import Link
from ...world.liveness import Cause
from ...world.peers import PeerInfo
from ..agent.absence import Absence
from ..agent.agent import Agent
from ..job.actions import ORDERS, REPORTS, Interrupted, Order, Outcome, Report, Reset, RosterWanted, Runs
from ..job.job import Job, JobPlan, Phase
from ..job.layout import AgentInfo
from ..job.notes import (
    agent_to_fields,
    outcome_from_fields,
    outcome_to_fields,
)
from ..job.roster import Roster, RosterEntry
from ..rendezvous.base import Address, Advice, Rendezvous
from .coordinator import Coordinator
from .election import has_quorum, line_of_succession, may_have_gone_on
from .enlistment import WELCOME_S, Enlistment, Welcome
from .event_log import EventCopy, EventLog, segments_of
from .followers import FENCE_S, Followers
from .links import AgentLinks
from .mailroom import TAKES_CHANGES, RosterCopy
from .meeting import Call, Place, Reminder, Strangers

__all__ = ["CutOffError", "Leadership", "LeftBehindError", "MeetingError", "MeetingPlaceError", "Role"]

logger = logging.getLogger(__name__)

RETRY_S = 0.05
STOCK_S = 1.0
CALLS_AT_ONCE = 64


class Role(enum.Enum):
    """What this agent is to the others."""

    SEARCHING = "searching"
    FOLLOWING = "following"
    LEADING = "leading"
    OVER = "over"


class MeetingError(MultiworldError):
    """The other agents of the job were not found."""

    def __init__(self, where: str, timeout_s: float, why: str) -> None:
        super().__init__(where, timeout_s, why)
        self.where, self.timeout_s, self.why = where, timeout_s, why

    def __str__(self) -> str:
        return f"no coordinator of this job was found at {self.where} within {self.timeout_s:.3g} s; {self.why}"


class MeetingPlaceError(MultiworldError):
    """The agents cannot meet where they were told to: something else is there, or nobody may listen there."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"the job cannot meet at {self.where}: {self.reason}; choose another port or endpoint"


class CutOffError(MultiworldError):
    """The other agents cannot be reached, and may go on without this one."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(silent_s)
        self.silent_s = silent_s

    def __str__(self) -> str:
        return (
            f"cut off from most of the job's other agents for {self.silent_s:.1f} s, and they may go on without this "
            "host. Start an agent here again when they can be reached; --cut-off-timeout says how long it waits"
        )


class LeftBehindError(MultiworldError):
    """The other agents are gone, and may have ended the job while this one was away."""

    def __init__(self, num_others: int) -> None:
        super().__init__(num_others)
        self.num_others = num_others

    def __str__(self) -> str:
        return (
            "this host was stopped, or cut off from the job's other agents, and they are gone now: either the job has "
            f"ended without it, or all {self.num_others} of them died. See their logs; to go on, start the job again"
        )


class Leadership:
    """An owner of ``AgentLinks``. Progress thread only.

    ``digest`` is what all agents of the job must agree on. ``rendezvous`` is how they meet at first.
    """

    def __init__(
        self,
        loop: ProgressThread,
        plan: JobPlan,
        *,
        token: bytes,
        lease_s: float,
        digest: dict[str, Any],
        rendezvous: Rendezvous,
        on_over: Callable[[Outcome], None],
    ) -> None:
        self._loop, self._plan, self._token, self._digest = loop, plan, token, digest
        self._lease_s = lease_s
        self._rendezvous, self._on_over = rendezvous, on_over
        self.role = Role.SEARCHING
        self.coordinator: Coordinator | None = None
        self._links: AgentLinks
        self._enlistment: Enlistment
        self._agent: Agent
        self._info: AgentInfo
        self._roster: Roster | None = None  # the last that we were told, or had when we stopped coordinating
        self._copy = RosterCopy()
        self._superior: Link | None = None
        self._followers: Followers | None = None
        self._parked: dict[Link, dict[str, Any]] = {}  # callers that wait until we know who leads
        self._signum: int | None = None  # somebody wants the job to end
        self._why = ""
        self._is_meeting = False
        self._store: TCPStoreServer | None = None
        self._outcome: Outcome | None = None  # how the job has ended
        self._is_fenced = False
        self.is_stale = False
        """Whether this agent was away, so that the others may have gone on without it, and to the end."""
        self._stale_since = 0.0
        self._dead: set[str] = set()  # those that the search has found to be dead
        self._dead_before: set[str] = set()  # those that had died when that began
        self._reminder = Reminder()
        self._strangers = Strangers()
        self._absence = Absence(lease_s=lease_s, now=_time_passed())
        self._search: Operation[None] | None = None
        self._events = EventCopy(self._tell_coordinator)
        self.on_leading: Callable[[Coordinator | None], None] = lambda coordinator: None
        """Told when this agent begins to coordinate, and, with None, when it does no longer."""
        self.on_control: Callable[[Link, dict[str, Any]], None] = lambda link, note: None
        """Takes what is asked about the job by way of other agents, and the answers."""

    def begin(self, links: AgentLinks, agent: Agent, info: AgentInfo) -> None:
        """Look for the job's coordinator, or become it."""
        self._links, self._agent, self._info = links, agent, info
        self._enlistment = Enlistment(self._loop, links, self._introduction)
        self._look_for(self._meet())
        self._take_stock()
        self._watch_the_clock()

    @property
    def superior(self) -> Link | None:
        """The link to the coordinator, while this agent follows another."""
        return self._superior if self.role is Role.FOLLOWING else None

    def tell(self, link: Link, note: dict[str, Any]) -> None:
        self._links.tell(link, note)

    def report(self, report: Report) -> None:
        """Pass on what this host's agent reports; what nobody hears now is told again by its introduction."""
        self._tell_coordinator(REPORTS.to_json(report))

    def _tell_coordinator(self, note: dict[str, Any]) -> None:
        self._look_at_the_clock()
        if self.role is Role.LEADING and self.coordinator is not None:
            self._loop.call_soon(partial(self.coordinator.hear, self._info.id, note))
        elif self.role is Role.FOLLOWING and self._superior is not None:
            self._links.tell(self._superior, note)

    def interrupt(self, signum: int, why: str = "") -> None:
        """Somebody wants the job to end: on every host, or here, if we know of no other. ``why``: if by no signal."""
        self._signum, self._why = signum, why
        if self.role in (Role.FOLLOWING, Role.LEADING):
            self._interrupt_again()
        elif self._roster is None or self._is_fenced:  # else the next coordinator is told, once it is found
            outcome = Outcome(status=128 + signum, text="ended while it looked for the other agents", signum=signum)
            self._agent.fence(partial(self.end, outcome, of_job=False))

    def _take_stock(self) -> None:
        """Say from time to time what runs here, so that no lost order or report is lost for ever."""
        if self.role is not Role.OVER:
            self._loop.call_later(STOCK_S, self._take_stock)
            self.report(Runs(workers=tuple(self._agent.running), pids=self._agent.pids))
            self._remind()

    def _remind(self) -> None:
        """Say now and then whom we wait for at first."""
        come = None
        if self.role is Role.LEADING and self.coordinator is not None:
            job = self.coordinator.job
            if job.phase is Phase.GATHERING and len(job.agents) < self._plan.min_nodes:
                come = len(job.agents)
        is_waiting = come is not None or (self.role is Role.SEARCHING and self._is_meeting)
        waited_s = self._reminder.look(time.monotonic(), is_waiting=is_waiting)
        if waited_s is None:
            return
        so_far = f"{waited_s:.0f} s of at most {self._plan.join_timeout_s:g} s so far"
        if come is not None:
            text = "%d of at least %d hosts have come; this one waits for others at %s (%s)"
            logger.warning(text, come, self._plan.min_nodes, self._rendezvous, so_far)
        else:
            text = "this host looks for the other agents of the job at %s (%s): %s"
            logger.warning(text, self._rendezvous, so_far, self._why_nobody())

    def _why_nobody(self) -> str:
        """Return, in a clause, what the last look has met, and what to see to."""
        there, why = self._strangers.what_is_there, self._rendezvous.why_nobody()
        return why if there is None else f"{there}; {why}"

    def _watch_the_clock(self) -> None:
        if self.role is Role.OVER:
            return
        self._loop.call_later(self._absence.every_s, self._watch_the_clock)
        self._look_at_the_clock()
        is_linked = self.role in (Role.FOLLOWING, Role.LEADING)
        if self.is_stale and is_linked and time.monotonic() - self._stale_since > 2 * self._lease_s:
            self.is_stale = False  # whoever had given us up would have closed its link

    def _look_at_the_clock(self) -> None:
        """Called before anything is decided: whoever was away knows nothing of what the others did meanwhile."""
        away_s = self._absence.looked(_time_passed())
        if not away_s:
            return
        logger.warning("this agent did not run for %.1f s", away_s)
        self._goes_stale(self._dead)
        if self._followers is not None and self._followers.have_gone:
            self._cut_off()

    def _interrupt_again(self) -> None:
        """Whoever was told before may be gone."""
        if self._signum is not None:
            self.report(Interrupted(signum=self._signum, why=self._why))

    def _interrupt_here(self) -> None:
        """Cut off: nobody is there to pass it on to."""
        if self._signum is not None:
            self.interrupt(self._signum, self._why)

    def end(self, outcome: Outcome, *, of_job: bool = True) -> None:
        """The job is over, or is for this host."""
        if self.role is Role.OVER:
            return
        self._outcome = outcome if of_job else None
        self.abort()
        self._on_over(outcome)

    def abort(self) -> None:
        """Stop deciding anything, and tell nobody."""
        self.role = Role.OVER
        if self._search is not None:
            self._search.cancel(StepsCancelled())
        if self._followers is not None:
            self._followers.close()
        if self.coordinator is not None:
            self.on_leading(None)
            self.coordinator.close()
        if self._store is not None:
            self._store.close()
        self._rendezvous.close()

    # ---- finding the coordinator

    def _look_for(self, steps: Coroutine[Any, Any, None]) -> None:
        self.role = Role.SEARCHING
        before, self._search = self._search, None
        if before is not None:
            before.cancel(StepsCancelled())
        self._search = drive(steps)
        self._search.add_callback(self._looked)

    def _looked(self, search: Operation[None]) -> None:
        error = search.error
        if isinstance(error, StepsCancelled):  # another search goes on
            return
        if error is not None and self.role is not Role.OVER:
            self._loop.call_soon(partial(self.end, Outcome(status=1, text=str(error)), of_job=False))

    async def _meet(self) -> None:
        """At first: meet the others at the endpoint, or wait for them there."""
        self._is_meeting = True
        try:
            await self._meet_somebody()
        finally:
            self._is_meeting = False

    async def _meet_somebody(self) -> None:
        began = time.monotonic()
        self._strangers = strangers = Strangers()
        while True:
            advice = await self._rendezvous.look(self._listen)
            if advice.leads:
                self._lead(1, Job(self._plan, now=time.monotonic()))
                return
            calls: list[tuple[Call, Place]] = []
            for address in [each for each in advice.call if each not in self._links.addresses]:
                call = await self._follow(address.host, address.port)
                if call is Call.FOLLOWED:
                    return
                calls.append((call, self._place(address, advice)))
            now = time.monotonic()
            strangers.met(calls, now)
            why = strangers.why_hopeless(now)
            if why is not None:
                raise MeetingPlaceError(str(self._rendezvous), _describe_stranger(advice, why))
            if now - began > self._plan.join_timeout_s:
                raise MeetingError(str(self._rendezvous), self._plan.join_timeout_s, self._why_nobody())
            await pause(self._loop, self._rendezvous.retry_s)

    def _place(self, address: Address, advice: Advice) -> Place:
        is_here = address in advice.taken
        if self._plan.max_nodes == 1 or (is_here and self._info.node_rank == 0):
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
                raise MeetingPlaceError(
                    str(self._rendezvous), f"this host cannot listen at {shown}: {error}"
                ) from error
            return False  # another agent of this host was first, or something else
        return True

    async def _follow(self, host: str, port: int, *, is_known: bool = False) -> Call:
        """Report for duty with an agent, or whoever it sends us to, as ``Enlistment`` does."""
        called = await self._enlistment.attempt(host, port, is_known=is_known)
        if isinstance(called, Welcome):
            self._welcomed(*called)
            return Call.FOLLOWED
        return called

    def _introduction(self) -> dict[str, Any]:
        roster = self._roster
        return {
            "agent": agent_to_fields(self._info),
            "digest": self._digest,
            "term": 0 if roster is None else roster.term,
            "lost": "" if roster is None else roster.coordinator,
            "stale": self.is_stale,
            "doors": list(self._links.addresses),
            "segments": self._events.history.segments(),
            TAKES_CHANGES: True,
            **self._agent.introduction(),
        }

    def _welcomed(self, link: Link, answer: dict[str, Any]) -> None:
        peer = PeerInfo.from_json(str(answer["peer"]).encode())
        self._superior = link
        self._links.introduce(link, peer, float(answer["heartbeat_s"]))
        self._take_roster(answer)
        self.role = Role.FOLLOWING
        self._is_fenced = self.is_stale = False
        self._dead = set()
        logger.info("the coordinator is %s", peer)
        self._agent.repeat()
        self._interrupt_again()
        self._redirect_parked()

    # ---- leading

    def _lead(self, term: int, job: Job) -> None:
        """Coordinate from now on."""
        me = self._links.me
        assert me is not None
        self._superior = None
        self._store = TCPStoreServer(self._loop, me.host, 0, self._token)
        shown = f"[{me.host}]" if ":" in me.host else me.host
        store = f"tcp://{shown}:{self._store.port}"
        events = EventLog(
            self._events.history,
            term=term,
            agent_id=self._info.id,
            send=self._send,
            told=[segment for note in self._parked.values() for segment in segments_of(note)],
            num_recorded=0 if self._roster is None else self._roster.num_events,
        )
        self.coordinator = coordinator = Coordinator(
            self._loop,
            job,
            term=term,
            agent_id=self._info.id,
            store=store,
            events=events,
            send=self._send,
            on_over=self._ended,
        )
        self._followers = followers = Followers(
            self._loop,
            self._links,
            coordinator,
            digest=self._digest,
            lease_s=self._lease_s,
            lookouts=self._rendezvous.lookouts,
            on_cut_off=self._cut_off,
        )
        self.role = Role.LEADING
        self._is_fenced = self.is_stale = False
        self._dead = set()
        logger.info("this agent coordinates the job (term %d)", term)
        if term > 1:
            coordinator.took_over(self._info, self._roster)
        self._agent.use_store(store)
        coordinator.attach(self._info, self._agent.introduction())
        self._loop.call_soon(self._agent.repeat)
        self._loop.call_soon(self._interrupt_again)
        coordinator.start()
        parked, self._parked = self._parked, {}
        for link, note in parked.items():
            followers.admit(link, note)
        self.on_leading(coordinator)
        self._rendezvous.announce(Address(me.host, me.port), term)
        followers.look_out()

    def _send(self, agent_id: str, note: dict[str, Any]) -> None:
        if agent_id == self._info.id:
            self._loop.call_soon(partial(self._obey_ourselves, self.coordinator, note))
        elif self._followers is not None:
            self._followers.tell(agent_id, note)

    def _ended(self, outcome: Outcome) -> None:
        self._loop.call_soon(partial(self.end, outcome))

    def _summoned(self, note: dict[str, Any]) -> None:
        """There is another coordinator of this job: the one with the higher term, or the older job, goes on."""
        host, port = str(note["host"]), int(note["port"])
        if self.role is Role.SEARCHING and self._is_meeting:
            self._look_for(self._follow_or_meet(host, port))
            return
        if self.role is not Role.LEADING or self.coordinator is None or note["id"] == self._info.id:
            return
        theirs, ours = list(note["rank"]), [self.coordinator.term, self.coordinator.job.generation]
        if theirs < ours or (theirs == ours and str(note["id"]) > self._info.id):
            return
        logger.warning("the job has a coordinator at %s:%d already", host, port)
        self._step_down()
        self._fence(set())
        self._look_for(self._follow_or_meet(host, port))

    async def _follow_or_meet(self, host: str, port: int) -> None:
        if await self._follow(host, port) is not Call.FOLLOWED:
            await self._meet()

    def _step_down(self) -> None:
        self._rendezvous.withdraw()
        if self.coordinator is not None:
            self._roster = self.coordinator.roster
            self.on_leading(None)
            self.coordinator.close()
            self.coordinator = None
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._followers is not None:
            self._followers.close()
            self._followers = None

    def _cut_off(self) -> None:
        """Most of the agents that followed us may go on without us."""
        self._step_down()
        self._fence(set())
        assert self._roster is not None
        self._look_for(self._succeed(self._roster, set()))
        self._interrupt_here()

    # ---- losing the coordinator

    def _superior_lost(self, cause: Cause, detail: str) -> None:
        roster = self._roster
        assert roster is not None
        logger.warning("the coordinator is lost: %s", detail)
        self._superior = None
        dead = {roster.coordinator} if cause is Cause.LEFT else set[str]()
        self._look_for(self._succeed(roster, dead, is_closed=cause is Cause.DIED))

    async def _succeed(self, roster: Roster, dead: set[str], *, is_closed: bool = False) -> None:
        """Follow the next in line, or lead if that is us; cut off from most of the others, end our workers.

        ``is_closed``: the coordinator's end of our link was closed: it is dead, or has given us up.
        """
        began = time.monotonic()
        lost = roster.find(roster.coordinator)
        self._dead = dead
        while True:
            if is_closed and lost is not None and lost.id not in dead:
                called = await self._follow(lost.host, lost.port, is_known=True)
                if called is Call.FOLLOWED:
                    return
                if called is Call.DEAD:
                    dead.add(lost.id)
            line = line_of_succession(roster, dead)
            me = roster.find(self._info.id)
            if me is not None and roster.coordinator == me.id:
                line.append(me)
            for place, heir in enumerate(line):
                if heir.id == self._info.id:
                    if not self._may_lead(roster, dead):  # those behind us may be dead too, and have no vote then
                        dead |= await self._dead_among(line[place + 1 :])
                    if self._may_lead(roster, dead):
                        if is_closed and lost is not None and lost.id not in dead:
                            dead |= await self._dead_among([lost])  # a dying process may have taken our call
                        self._raise_if_left_behind(roster, dead)
                        self._take_over(roster, dead)
                        return
                    break
                called = await self._follow(heir.host, heir.port, is_known=True)
                if called is Call.FOLLOWED:
                    return
                if called is Call.DEAD:
                    dead.add(heir.id)
            if not self._is_fenced and time.monotonic() - began > FENCE_S:
                self._fence(dead)
                self._interrupt_here()
            if self._is_fenced and lost is not None and lost.id not in {self._info.id, *dead}:  # it may be back
                called = await self._follow(lost.host, lost.port, is_known=True)
                if called is Call.FOLLOWED:
                    return
                if called is Call.DEAD:
                    dead.add(lost.id)
            known_s = self._lease_s + WELCOME_S  # before that, somebody may only have been slow to answer
            if self._is_fenced and time.monotonic() - began > max(self._plan.cut_off_s, known_s):
                raise CutOffError(time.monotonic() - began)
            await pause(self._loop, RETRY_S)

    async def _dead_among(self, members: Sequence[RosterEntry]) -> set[str]:
        dead: set[str] = set()
        for first in range(0, len(members), CALLS_AT_ONCE):
            some = members[first : first + CALLS_AT_ONCE]
            calls = [(each.id, drive(self._links.is_dead(each.host, each.port))) for each in some]
            dead |= {agent_id for agent_id, is_dead in calls if await is_dead}
        return dead

    def _may_lead(self, roster: Roster, dead: set[str]) -> bool:
        votes = {self._info.id} | {str(note["agent"]["id"]) for note in self._parked.values()}
        coordinated = roster.coordinator == self._info.id
        return has_quorum([each.id for each in roster.members], votes=votes, dead=dead, coordinated=coordinated)

    def _raise_if_left_behind(self, roster: Roster, dead: set[str]) -> None:
        is_stale = self.is_stale and all(note.get("stale") for note in self._parked.values())
        if is_stale and may_have_gone_on(roster, dead, before=self._dead_before):
            raise LeftBehindError(len(dead))

    def _take_over(self, roster: Roster, dead: set[str]) -> None:
        # a coordinator that is merely silent is waited for as well: until it has ended its workers, if it is cut off
        self._lead(roster.term + 1, Job.resume(self._plan, roster, now=time.monotonic(), dead=dead))

    def _fence(self, dead: set[str]) -> None:
        self._is_fenced = True
        self._goes_stale(dead)
        if self._agent.num_running:
            logger.error("cut off from the job's other agents: the workers of this host are ended")
        self._agent.fence(lambda: None)

    def _goes_stale(self, dead: set[str]) -> None:
        self._stale_since = time.monotonic()
        if not self.is_stale:
            self.is_stale, self._dead_before = True, set(dead)

    # ---- owner of the links

    def agent_said(self, link: Link, note: dict[str, Any]) -> None:
        self._look_at_the_clock()
        say = note["say"]
        if say == "attach":
            self._wants_to_attach(link, note)
        elif say == "summon":
            self._summoned(note)
        elif say in ("asked", "answered"):
            self.on_control(link, note)
        elif say == "end" and link in (self._superior, self._enlistment.link):
            self.end(outcome_from_fields(note["outcome"]), of_job=bool(note.get("of_job", True)))
        elif self._enlistment.heard(link, note):
            return
        elif say == "welcome":  # we look elsewhere by now
            self._links.drop(link)
        elif link is self._superior and self.role is Role.FOLLOWING:
            self._obey(note)
        elif self._followers is not None:
            self._followers.heard(link, note)

    def agent_link_lost(self, link: Link, cause: Cause, detail: str) -> None:
        self._look_at_the_clock()
        self._parked.pop(link, None)
        if self._enlistment.lost(link, detail):
            return
        if link is self._superior:
            if self.role is Role.FOLLOWING:
                self._superior_lost(cause, detail)
            return
        if self._followers is not None:
            self._followers.lost(link, cause, detail)

    def _wants_to_attach(self, link: Link, note: dict[str, Any]) -> None:
        if self.role is Role.OVER:
            if self._outcome is not None:
                self._links.tell(link, {"say": "end", "outcome": outcome_to_fields(self._outcome)})
            return
        if self.role is Role.LEADING and self._followers is not None:
            self._followers.admit(link, note)
            return
        roster = self._roster
        has_lost_ours = roster is not None and note.get("lost") == roster.coordinator
        if self.role is Role.FOLLOWING and not has_lost_ours:
            self._redirect(link)
            return
        self._parked[link] = note
        if self.role is Role.FOLLOWING:  # we have not noticed yet, or it is only the caller that lost it
            self._loop.call_later(WELCOME_S / 2, partial(self._redirect_if_parked, link))

    def _redirect_if_parked(self, link: Link) -> None:
        if link in self._parked and self.role is Role.FOLLOWING:
            self._redirect(link)

    def _redirect_parked(self) -> None:
        for link in list(self._parked):
            self._redirect(link)

    def _redirect(self, link: Link) -> None:
        self._parked.pop(link, None)
        assert self._superior is not None
        peer = self._superior.peer
        self._links.tell(link, {"say": "redirect", "host": peer.host, "port": peer.port})

    # ---- what the coordinator says

    def _obey_ourselves(self, coordinator: Coordinator | None, note: dict[str, Any]) -> None:
        if coordinator is self.coordinator:  # else we have stepped down since, and ended our workers
            self._obey(note)

    def _obey(self, note: dict[str, Any]) -> None:
        if self.role is Role.OVER:
            return
        say = note["say"]
        if say in ("roster", "roster change"):
            self._take_roster(note)
        elif say == "end":  # from ourselves, as the coordinator
            self.end(outcome_from_fields(note["outcome"]), of_job=bool(note.get("of_job", True)))
        elif say in ("events", "events wanted"):
            self._events.heard(note)
        else:
            self._carry_out(ORDERS.from_json(note))

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, Reset):
            self._agent.fence(self._attach_anew, forgets=True)
        else:
            self._agent.obey(order)

    def _attach_anew(self) -> None:
        """Our workers are gone, as the coordinator wanted: report for duty as a new host."""
        if self.role is Role.LEADING and self.coordinator is not None:
            self.coordinator.attach(self._info, self._agent.introduction())
        elif self.role is Role.FOLLOWING and self._superior is not None:
            peer = self._superior.peer
            self._links.drop(self._superior)
            self._look_for(self._follow_or_succeed(peer.host, peer.port))

    async def _follow_or_succeed(self, host: str, port: int) -> None:
        if await self._follow(host, port) is Call.FOLLOWED:
            return
        assert self._roster is not None
        await self._succeed(self._roster, set(), is_closed=True)

    def _take_roster(self, note: dict[str, Any]) -> None:
        if not self._copy.take(note):
            self.report(RosterWanted())
            return
        self._roster = roster = self._copy.roster
        assert roster is not None
        self._agent.use_store(roster.store)


def _time_passed() -> float:
    """Return seconds that a host's suspension is part of, unlike those of ``time.monotonic``."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _describe_stranger(advice: Advice, why: str) -> str:
    if not advice.taken:
        return f"something listens there that is no agent of a job: {why}"
    listener = find_listener(advice.taken[0].port)
    who = "something" if listener is None else f"{listener.name} (pid {listener.pid})"
    return f"EADDRINUSE, {who} listens there already, and is no agent of a job: {why}"

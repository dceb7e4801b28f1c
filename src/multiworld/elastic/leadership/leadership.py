"""Which agent coordinates: this one follows another, or leads, or looks for one; and what it does when that is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from ...wire.messages import Json
from ...wire.progress.operation import Operation, StepsCancelled, drive
from ...wire.progress.thread import ProgressThread
from ...world.links.link import Link
from ...world.links.peers import PeerInfo
from ...world.liveness import Cause
from ..agent.absence import Absence
from ..agent.agent import Agent
from ..job.actions import Interrupted, Order, Outcome, Report, Reset, RosterWanted, Runs
from ..job.job import Job, Phase
from ..job.layout import AgentInfo
from ..job.plan import JobPlan
from ..job.roster import Roster
from ..job.trainings import KnownTraining
from ..rendezvous.base import Address, Rendezvous
from . import messages
from .callers import Callers
from .coordinator import Coordinator
from .election import Role, RoleChange, advance
from .enlistment import WELCOME_S, Enlisted, Enlistment
from .event_log import EventCopy
from .first_meeting import FirstMeeting
from .links import AgentLinks
from .mailroom import RosterCopy
from .meeting import Call
from .standing import Standing
from .succession import Succession
from .term import JobTerms, Term

logger = logging.getLogger(__name__)

STOCK_S = 1.0


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
        digest: Mapping[str, Json],
        rendezvous: Rendezvous,
        on_over: Callable[[Outcome], None],
    ) -> None:
        self._loop = loop
        self._terms = JobTerms(plan=plan, token=token, lease_s=lease_s, digest=digest)
        self._rendezvous, self._on_over = rendezvous, on_over
        self.role = Role.SEARCHING
        self._links: AgentLinks
        self._enlistment: Enlistment
        self._callers: Callers
        self._meeting: FirstMeeting
        self._agent: Agent
        self._info: AgentInfo
        self._roster: Roster | None = None  # the last that we were told, or had when we stopped coordinating
        self._copy = RosterCopy()
        self._superior: Link | None = None
        self._term: Term | None = None
        self._interrupted: Interrupted | None = None  # somebody wants the job to end
        self._outcome: Outcome | None = None  # how the job has ended
        self._standing = Standing()
        self._absence = Absence(lease_s=lease_s, now=_time_passed())
        self._search: Operation[None] | None = None
        self._events = EventCopy(self.report)
        self._trainings: tuple[KnownTraining, ...] = ()  # as the coordinator told it last
        self.on_leading: Callable[[Coordinator | None], None] = lambda coordinator: None
        """Told when this agent begins to coordinate, and, with None, when it does no longer."""
        self.on_control: Callable[[Link, messages.Asked | messages.Answered], None] = lambda link, message: None
        """Takes what is asked about the job by way of other agents, and the answers."""

    def begin(self, links: AgentLinks, agent: Agent, info: AgentInfo) -> None:
        """Look for the job's coordinator, or become it."""
        self._links, self._agent, self._info = links, agent, info
        self._enlistment = Enlistment(self._loop, links, self._introduction)
        self._callers = Callers(links)
        self._meeting = FirstMeeting(
            self._loop,
            self._terms.plan,
            self._rendezvous,
            links,
            node_rank=info.node_rank,
            follow=lambda address: self._follow(address.host, address.port),
        )
        self._look_for(self._meet())
        self._take_stock()
        self._watch_the_clock()

    @property
    def coordinator(self) -> Coordinator | None:
        """If this agent coordinates, or did when the job ended."""
        return None if self._term is None else self._term.coordinator

    @property
    def superior(self) -> Link | None:
        """The link to the coordinator, while this agent follows another."""
        return self._superior if self.role is Role.FOLLOWING else None

    @property
    def is_stale(self) -> bool:
        """Whether this agent was away, so that the others may have gone on without it, and to the end."""
        return self._standing.is_stale

    def tell(self, link: Link, message: messages.AgentMessage) -> None:
        self._links.tell(link, message)

    def report(self, message: Report | messages.EventsTold | messages.EventsWanted) -> None:
        """Tell the coordinator; what nobody hears now is told again by this host's introduction."""
        self._look_at_the_clock()
        if self.role is Role.LEADING and self._term is not None:
            self._loop.call_soon(partial(self._term.coordinator.hear, self._info.id, message))
        elif self.superior is not None:
            self._links.tell(self.superior, message)

    def interrupt(self, signum: int, why: str = "") -> None:
        """Somebody wants the job to end: on every host, or here, if we know of no other. ``why``: if by no signal."""
        self._interrupted = Interrupted(signum=signum, why=why)
        self._interrupt_again()
        if self.role is Role.SEARCHING and (self._roster is None or self._standing.is_fenced):
            outcome = Outcome(status=128 + signum, text="ended while it looked for the other agents", signum=signum)
            self._agent.fence(partial(self.end, outcome, of_job=False))  # else the next coordinator is told

    def end(self, outcome: Outcome, *, of_job: bool = True) -> None:
        """The job is over, or is for this host."""
        if self.role is Role.OVER:
            return
        self._outcome = outcome if of_job else None
        self.abort()
        self._on_over(outcome)

    def abort(self) -> None:
        """Stop deciding anything, and tell nobody. Idempotent."""
        if self.role is Role.OVER:
            return
        self._go(RoleChange.ENDED)
        if self._search is not None:
            self._search.cancel(StepsCancelled())
        if self._term is not None:
            self.on_leading(None)
            self._term.close()
        self._rendezvous.close()

    # ---- what is looked at from time to time

    def _take_stock(self) -> None:
        """Say what runs here, so that no lost order or report is lost for ever."""
        if self.role is Role.OVER:
            return
        self._loop.call_later(STOCK_S, self._take_stock)
        self.report(Runs(workers=tuple(self._agent.running), pids=self._agent.pids))
        num_come = None
        if self._term is not None:
            job = self._term.coordinator.job
            if job.phase is Phase.GATHERING and len(job.nodes.agents) < self._terms.plan.min_nodes:
                num_come = len(job.nodes.agents)
        self._meeting.remind(num_come=num_come, is_searching=self.role is Role.SEARCHING)

    def _watch_the_clock(self) -> None:
        if self.role is Role.OVER:
            return
        self._loop.call_later(self._absence.every_s, self._watch_the_clock)
        self._look_at_the_clock()
        if self.role in (Role.FOLLOWING, Role.LEADING):
            self._standing.is_linked(time.monotonic(), self._terms.lease_s)

    def _look_at_the_clock(self) -> None:
        """Called before anything is decided: an agent that was away does not know what the others did meanwhile."""
        away_s = self._absence.looked(_time_passed())
        if not away_s or self.role is Role.OVER:
            return
        logger.warning("this agent did not run for %.1f s", away_s)
        self._standing.was_away(self._standing.dead, time.monotonic())
        if self._term is not None and self._term.followers.have_gone:
            self._cut_off()

    # ---- finding the coordinator

    def _go(self, change: RoleChange) -> None:
        self.role = advance(self.role, change)

    def _look_for(self, steps: Coroutine[Any, Any, None]) -> None:
        """Take these steps until there is a coordinator, in place of those that were taken before."""
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
        if await self._meeting.attend():
            self._lead(1, Job(self._terms.plan, now=time.monotonic()))

    async def _follow_or_meet(self, host: str, port: int) -> None:
        if await self._follow(host, port) is not Call.FOLLOWED:
            await self._meet()

    async def _follow_or_succeed(self, host: str, port: int) -> None:
        if await self._follow(host, port) is Call.FOLLOWED:
            return
        assert self._roster is not None
        await self._succeed(self._roster, set(), is_closed=True)

    async def _succeed(self, roster: Roster, dead: set[str], *, is_closed: bool = False) -> None:
        succession = Succession(
            self._loop,
            self._terms.plan,
            self._links,
            self._callers,
            self._standing,
            roster,
            dead,
            agent_id=self._info.id,
            lease_s=self._terms.lease_s,
            follow=self._follow,
            fence=self._fence,
            is_closed=is_closed,
        )
        if await succession.find():
            # a coordinator that is merely silent is waited for: until it has ended its workers, if it is cut off
            self._lead(roster.term + 1, Job.resume(self._terms.plan, roster, now=time.monotonic(), dead=dead))

    # ---- following

    async def _follow(self, host: str, port: int, *, is_known: bool = False) -> Call:
        """Report for duty with an agent, or with the one that it sends us to, as ``Enlistment`` does."""
        called = await self._enlistment.attempt(host, port, is_known=is_known)
        if isinstance(called, Enlisted):
            self._welcomed(*called)
            return Call.FOLLOWED
        return called

    def _introduction(self) -> messages.Attach:
        roster, here = self._roster, self._agent.introduction()
        return messages.Attach(
            agent=self._info,
            digest=self._terms.digest,
            term=0 if roster is None else roster.term,
            lost="" if roster is None else roster.coordinator,
            stale=self.is_stale,
            doors=tuple(self._links.addresses),
            segments=tuple(self._events.history.segments()),
            takes_roster_changes=True,
            workers=here.workers,
            master=here.master,
            ages_s=here.ages_s,
        )

    def _welcomed(self, link: Link, peer: PeerInfo, welcome: messages.Welcome) -> None:
        self._superior = link
        self._links.introduce(link, peer, welcome.heartbeat_s)
        self._take_roster(welcome)
        self._go(RoleChange.WELCOMED)
        self._standing.restored()
        logger.info("the coordinator is %s", peer)
        self._agent.repeat()
        self._interrupt_again()
        self._callers.redirect_all(peer)

    def _superior_lost(self, cause: Cause, detail: str) -> None:
        assert self._roster is not None
        logger.warning("the coordinator is lost: %s", detail)
        self._superior = None
        self._go(RoleChange.LOST)
        dead = {self._roster.coordinator} if cause is Cause.LEFT else set[str]()
        self._look_for(self._succeed(self._roster, dead, is_closed=cause is Cause.DIED))

    # ---- leading

    def _lead(self, number: int, job: Job) -> None:
        """Coordinate from now on."""
        self._superior = None
        self._term = term = Term(
            self._loop,
            self._links,
            self._terms,
            self._info,
            job,
            number=number,
            history=self._events.history,
            before=self._roster,
            trainings=self._trainings,
            callers=self._callers.introductions,
            lookouts=self._rendezvous.lookouts,
            obey=self._obey,
            on_over=lambda outcome: self._loop.call_soon(partial(self.end, outcome)),
            on_cut_off=self._cut_off,
        )
        coordinator, followers = term.coordinator, term.followers
        self._go(RoleChange.ELECTED)
        self._standing.restored()
        logger.info("this agent coordinates the job (term %d)", number)
        if number > 1:
            coordinator.took_over(self._info, self._roster)
        self._agent.use_store(term.store)
        coordinator.attach(self._introduction())
        self._loop.call_soon(self._agent.repeat)
        self._loop.call_soon(self._interrupt_again)
        coordinator.start()
        for link, attach in self._callers.take_all().items():
            followers.admit(link, attach)
        self.on_leading(coordinator)
        me = self._links.me
        assert me is not None
        self._rendezvous.announce(Address(me.host, me.port), number)
        followers.look_out()
        followers.say_who_is_out()

    def _summoned(self, summon: messages.Summon) -> None:
        """There is another coordinator of this job: the one with the higher term, or the older job, goes on."""
        host, port = summon.host, summon.port
        if self.role is Role.SEARCHING and self._meeting.is_on:
            self._look_for(self._follow_or_meet(host, port))
            return
        if self.role is not Role.LEADING or self._term is None or summon.id == self._info.id:
            return
        coordinator = self._term.coordinator
        theirs, ours = summon.rank, (coordinator.term, coordinator.job.generation)
        if theirs < ours or (theirs == ours and summon.id > self._info.id):
            return
        logger.warning("the job has a coordinator at %s:%d already", host, port)
        self._step_down()
        self._end_workers(set())
        self._look_for(self._follow_or_meet(host, port))

    def _step_down(self) -> None:
        assert self._term is not None
        self._go(RoleChange.STEPPED_DOWN)
        self._rendezvous.withdraw()
        self._roster = self._term.coordinator.roster
        self._trainings = self._term.coordinator.trainings.known
        self.on_leading(None)
        self._term.close()
        self._term = None

    def _cut_off(self) -> None:
        """Most of the agents that followed us may go on without us."""
        self._step_down()
        self._end_workers(set())
        assert self._roster is not None
        self._look_for(self._succeed(self._roster, set()))
        self._interrupt_here()

    def _fence(self, dead: set[str]) -> None:
        """We have found nobody for a while."""
        self._end_workers(dead)
        self._interrupt_here()

    def _end_workers(self, dead: set[str]) -> None:
        """Others may be started in their places."""
        self._standing.fenced(dead, time.monotonic())
        if self._agent.num_running:
            logger.error("cut off from the job's other agents: the workers of this host are ended")
        self._agent.fence(lambda: None)

    # ---- owner of the links

    def agent_said(self, link: Link, message: messages.AgentMessage) -> None:
        self._look_at_the_clock()
        if isinstance(message, messages.Attach):
            self._wants_to_attach(link, message)
        elif isinstance(message, messages.Summon):
            self._summoned(message)
        elif isinstance(message, (messages.Asked, messages.Answered)):
            self.on_control(link, message)
        elif isinstance(message, messages.Ended) and link in (self._superior, self._enlistment.link):
            self.end(message.outcome, of_job=message.of_job)
        elif self._enlistment.heard(link, message):
            return
        elif isinstance(message, messages.Welcome):  # we look elsewhere by now
            self._links.drop(link)
        elif link is self._superior and self.role is Role.FOLLOWING:
            self._obey(message)
        elif self._term is not None:
            self._term.followers.heard(link, message)

    def agent_link_lost(self, link: Link, cause: Cause, detail: str) -> None:
        self._look_at_the_clock()
        self._callers.forget(link)
        if self._enlistment.lost(link, detail):
            return
        if link is self._superior:
            if self.role is Role.FOLLOWING:
                self._superior_lost(cause, detail)
            return
        if self._term is not None:
            self._term.followers.lost(link, cause, detail)

    def _wants_to_attach(self, link: Link, attach: messages.Attach) -> None:
        if self.role is Role.OVER:
            if self._outcome is not None:
                self._links.tell(link, messages.Ended(outcome=self._outcome))
            return
        if self.role is Role.LEADING and self._term is not None:
            self._term.followers.admit(link, attach)
            return
        has_lost_ours = self._roster is not None and attach.lost == self._roster.coordinator
        if self.superior is not None and not has_lost_ours:
            self._callers.redirect(link, self.superior.peer)
            return
        self._callers.wait(link, attach)
        if self.role is Role.FOLLOWING:  # we have not noticed yet, or it is only the caller that lost it
            self._loop.call_later(WELCOME_S / 2, partial(self._redirect_if_waiting, link))

    def _redirect_if_waiting(self, link: Link) -> None:
        if link in self._callers and self.superior is not None:
            self._callers.redirect(link, self.superior.peer)

    # ---- between this agent and the coordinator, which may be this agent

    def _interrupt_again(self) -> None:
        """The coordinator that was told before may be gone."""
        if self._interrupted is not None:
            self.report(self._interrupted)

    def _interrupt_here(self) -> None:
        """Cut off: nobody is there to pass it on to."""
        if self._interrupted is not None:
            self.interrupt(self._interrupted.signum, self._interrupted.why)

    def _obey(self, message: messages.AgentMessage) -> None:
        if self.role is Role.OVER:
            return
        if isinstance(message, (messages.RosterTold, messages.RosterChanged)):
            self._take_roster(message)
        elif isinstance(message, messages.Ended):  # from ourselves, as the coordinator
            self.end(message.outcome, of_job=message.of_job)
        elif isinstance(message, (messages.EventsTold, messages.EventsWanted)):
            self._events.heard(message)
        elif isinstance(message, messages.TrainingsKnown):
            self._trainings = message.trainings
        elif isinstance(message, Reset):
            self._agent.fence(self._attach_anew, forgets=True)
        elif isinstance(message, Order):
            self._agent.obey(message)
        else:
            raise messages.AGENT_MESSAGES.misplaced(message, "a coordinator does not say this")

    def _attach_anew(self) -> None:
        """Our workers are gone, as the coordinator wanted: report for duty as a new host."""
        if self.role is Role.LEADING and self._term is not None:
            self._term.coordinator.attach(self._introduction())
        elif self.role is Role.FOLLOWING and self._superior is not None:
            peer = self._superior.peer
            self._links.drop(self._superior)
            self._go(RoleChange.LOST)
            self._look_for(self._follow_or_succeed(peer.host, peer.port))

    def _take_roster(self, news: messages.Welcome | messages.RosterTold | messages.RosterChanged) -> None:
        if not self._copy.take(news):
            self.report(RosterWanted())
            return
        self._roster = roster = self._copy.roster
        assert roster is not None
        self._agent.use_store(roster.store)


def _time_passed() -> float:
    """Return seconds that a host's suspension is part of, unlike those of ``time.monotonic``."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

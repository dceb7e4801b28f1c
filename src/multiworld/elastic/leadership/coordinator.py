"""The coordinator of a job: it hears agents, lets ``job`` decide, and passes on what was decided."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from ...wire.progress.thread import ProgressThread, Timer
from ..agent.clock import now_us
from ..job import actions
from ..job.job import Job, Phase
from ..job.layout import AgentInfo
from ..job.remote import RemoteStatus, remote_status
from ..job.roster import Roster, RosterEntry
from ..job.trainings import KnownTraining
from .election import SMALL_JOB, heirs, may_succeed
from .event_log import EventLog
from .mailroom import Mailroom
from .messages import AGENT_MESSAGES, AgentMessage, Attach, Ended, EventsTold, EventsWanted, Welcome
from .outbox import Outbox
from .training_log import TrainingLog

logger = logging.getLogger(__name__)

NOTABLE = {"worker failed", "restart", "agent lost", "missing", "waiting", "giving up", "interrupted", "takeover"}
URGENT = {"generation", "giving up", "interrupted"}  # whoever takes over must know of it
ROSTER_S = 0.05  # in a large job: how long changes of the roster are gathered before those who are no heirs are told


class Coordinator:
    """Runs on one agent's progress thread. ``send(agent_id, message)`` reaches any attached agent, this one's own too.

    ``on_over`` is called once, when the job has ended and every agent was told.
    """

    def __init__(
        self,
        loop: ProgressThread,
        job: Job,
        *,
        term: int,
        agent_id: str,
        store: str,
        events: EventLog,
        send: Callable[[str, AgentMessage], None],
        on_over: Callable[[actions.Outcome], None],
        trainings: Iterable[KnownTraining] = (),
    ) -> None:
        """``trainings``: what the coordinator before knew of them."""
        self._loop, self.job, self._store = loop, job, store
        self.agent_id = agent_id
        """The agent that coordinates."""
        self._on_over = on_over
        self._outbox = Outbox(loop, send)
        self.term = term
        self._attached: dict[str, AgentInfo] = {}
        self._entries: dict[str, RosterEntry] = {}  # of the roster, for those that are attached
        self.attached_at: dict[str, float] = {}
        self._pids: dict[str, dict[str, int]] = {}  # by agent and worker
        self._timer: Timer | None = None
        self._poll_at = inf
        self._mailroom = Mailroom(self._outbox)
        self._roster_due = False
        self.events = events
        self._training_log = TrainingLog(
            agent_id=agent_id, send=self._outbox.post, is_recorded=self._is_recorded, known=trainings
        )
        self.trainings = self._training_log.trainings
        self.remote: RemoteStatus | None = None
        """The job's nodes of remote tensors, if it has some; the next coordinator hears of them from the agents."""
        self._closed = False
        self._outcome: actions.Outcome | None = None  # until every agent was told

    @property
    def pids(self) -> dict[str, int]:
        """The processes of workers, as their agents say from time to time."""
        return {worker: pid for pids in self._pids.values() for worker, pid in pids.items()}

    @property
    def attached(self) -> list[str]:
        return list(self._attached)

    @property
    def roster(self) -> Roster:
        """What another agent must know to go on in our place."""
        return self._roster_of(self._entries.values())

    def _roster_of(self, members: Iterable[RosterEntry]) -> Roster:
        return Roster(
            term=self.term,
            coordinator=self.agent_id,
            generation=self.job.generation,
            store=self._store,
            members=tuple(members),
            active=tuple(self.job.nodes.active),
            wanted_nodes=self.job.nodes.wanted,
            draining=tuple(sorted(self.job.nodes.draining)),
            signum=self.job.ending.signum,
            given_up=self.job.ending.given_up,
            known=tuple(self.job.nodes.active_agents),
            finished=tuple(self.job.finished),
            uses_multiworld=self.job.restarts.uses_multiworld,
            num_events=self.events.num_recorded,
        )

    def welcome(self, attach: Attach, *, peer: str, heartbeat_s: float) -> Welcome:
        """Return what an agent must know before it is attached: the roster as it will be then, or was told last."""
        info = attach.agent
        self._outbox.forget(info.id)  # that was for its former connection: all that counts is said again
        roster, revision = self._mailroom.welcome(
            info.id,
            lambda: self._roster_of({**self._entries, info.id: _entry_of(info)}.values()),
            in_full=info.id in may_succeed([*self._attached, info.id], self.agent_id),
            takes_changes=attach.takes_roster_changes,
            is_told_soon=self._roster_due,
        )
        return Welcome(peer=peer, heartbeat_s=heartbeat_s, roster=roster, revision=revision)

    def attach(self, attach: Attach) -> None:
        """An agent reports for duty, with the workers that it runs."""
        info = attach.agent
        self._attached[info.id], self._entries[info.id] = info, _entry_of(info)
        self.attached_at[info.id] = time.monotonic()
        self.events.introduced(info.id, attach.segments)
        now = time.monotonic()
        self._carry_out(self.job.agent_attached(info, attach.workers, now, attach.master, ages_s=attach.ages_s))
        self._tell_roster()

    def welcome_back(self, attach: Attach) -> None:
        """An agent that we know, with the workers that we know of, has another connection."""
        agent_id = attach.agent.id
        self.events.introduced(agent_id, attach.segments)
        self._training_log.introduced(agent_id)
        self._carry_out(self.job.agent_returned(agent_id, attach.workers, time.monotonic(), attach.master))

    def knows(self, attach: Attach) -> bool:
        """Whether an agent that introduces itself again is attached, with just the workers that we know of."""
        agent_id = attach.agent.id
        ended = {report.worker for report in attach.workers if report.ended}
        workers = {report.worker for report in attach.workers} - ended
        is_in_job = agent_id in self.job.nodes.agents  # else it was told to begin anew
        return agent_id in self._attached and is_in_job and workers == self.job.running_on(agent_id) - ended

    def lose(self, agent_id: str, cause: str) -> None:
        self._pids.pop(agent_id, None)
        if agent_id in self._attached:
            self._forget(agent_id)
            self._outbox.forget(agent_id)
            self._carry_out(self.job.agent_lost(agent_id, cause, time.monotonic()))
            self._tell_roster()

    def hear(self, agent_id: str, report: AgentMessage) -> None:
        """An attached agent reports. Raises MessageError for what is no report."""
        if agent_id not in self._attached or self._closed:
            return
        now = time.monotonic()
        if isinstance(report, (EventsTold, EventsWanted)):
            self.events.heard(agent_id, report)
        elif isinstance(report, actions.Exited):
            failure = report.failure
            if failure is not None:  # by our clock: that of another host may be seconds off
                failure = replace(failure, at_us=failure.at_us + now_us() - report.clock_us)
            worker, returncode = report.worker, report.returncode
            self._carry_out(self.job.worker_exited(agent_id, worker, returncode, failure, now, ordered=report.ordered))
            if not returncode:
                self._tell_roster()  # whoever takes over must know that it need not be started again
        elif isinstance(report, actions.Greeted):
            self.job.worker_greeted(agent_id, report.worker)
        elif isinstance(report, actions.InWorld):
            self.job.worker_in_world(agent_id, report.worker, report.world, left=report.left)
        elif isinstance(report, actions.MasterOpened):
            self._carry_out(self.job.master_opened(report.generation, report.address, report.port, now))
        elif isinstance(report, actions.Runs):
            self._pids[agent_id] = dict(report.pids)
            self._carry_out(self.job.agent_runs(agent_id, report.workers, now))
        elif isinstance(report, actions.Interrupted):
            self._carry_out(self.job.interrupted(report.signum, now, report.why))
        elif isinstance(report, actions.TrainingTold):
            for record in self._training_log.take(report):
                self.record(record)
        elif isinstance(report, actions.RemoteTold):
            self.remote = remote_status(report.news, at=time.time())
            self._carry_out(self.job.remote_told(report.news, now))
        elif isinstance(report, actions.RosterWanted):
            in_full = agent_id in may_succeed(self._attached, self.agent_id)
            self._mailroom.tell_whole(agent_id, self.roster, in_full=in_full)
        else:
            raise AGENT_MESSAGES.misplaced(report, "an agent does not say this to its coordinator")

    def decide(self, decision: Callable[[Job, float], list[actions.Action]]) -> None:
        """Let the job decide on what somebody wants, and carry it out. Raises what ``decision`` does."""
        self._carry_out(decision(self.job, time.monotonic()))
        self._tell_roster()

    def kill_agent(self, agent_id: str) -> None:
        """End an agent as a fault would."""
        agent = self._attached[agent_id]
        where = f"{agent.hostname} ({agent.host}:{agent.port})"
        self.record(
            actions.Record(kind="killed", text=f"agent {where} is killed, as asked", fields={"agent": agent_id})
        )
        self._outbox.post((agent_id,), actions.Die())

    def record(self, record: actions.Record, *, is_notable: bool = False) -> None:
        """Tell people and programs of it; on the console, too, if it is notable."""
        is_notable |= record.kind in NOTABLE
        logger.log(logging.WARNING if is_notable else logging.INFO, "%s", record.text)
        generation = self.job.generation
        self.events.record(kind=record.kind, text=record.text, generation=generation, fields=record.fields)
        if record.kind in URGENT:
            self._tell_heirs()  # before the orders that follow from it

    def _is_recorded(self, kind: str, key: str) -> bool:
        return any(event.kind == kind and event.fields.get("key") == key for event in self.events.history.since(0))

    def took_over(self, info: AgentInfo, before: Roster | None) -> None:
        """This agent, ``info``, goes on with what another coordinated. ``before``: what that one said last."""
        lost = None if before is None else before.find(before.coordinator)
        where = f"{info.hostname} ({info.host}:{info.port})"
        instead = "" if lost is None or lost.id == info.id else f" in place of that at {lost.host}:{lost.port}"
        missing = "" if self.events.is_complete else "; events from before may be missing"
        text = f"the agent on {where} coordinates the job from now on{instead} (term {self.term}){missing}"
        fields = {"agent": info.id, "before": None if lost is None else lost.id}
        self.record(actions.Record(kind="takeover", text=text, fields=fields))

    def close(self) -> None:
        self._closed = True
        self._outbox.close()
        self._all_told()  # or they are lost by now
        if self._timer is not None:
            self._timer.cancel()

    def start(self) -> None:
        """Look at the time from now on: a job may end because nobody comes."""
        self._schedule()

    # ---- carrying out

    def _carry_out(self, decided: list[actions.Action]) -> None:
        for action in decided:
            try:
                self._do(action)
            except Exception:  # the others must be done all the same
                logger.exception("what the job decided could not be carried out: %s", action)
        self._schedule()

    def _do(self, action: actions.Action) -> None:
        match action:
            case actions.Record():
                self.record(action)
            case actions.End():
                self._end(action.outcome)
            case actions.Release():
                self._release(action.agent)
            case actions.Regroup():
                self._outbox.post(action.agents, action.membership)
            case _:
                self._outbox.post((action.agent,), action)

    def _end(self, outcome: actions.Outcome) -> None:
        self._outcome = outcome
        self._outbox.post(self._attached, Ended(outcome=outcome))
        self._outbox.post_later(self._all_told)

    def _all_told(self) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._on_over(outcome)

    def _release(self, agent: str) -> None:
        outcome = actions.Outcome(status=0, text="this host was drained")
        self._outbox.post((agent,), Ended(outcome=outcome, of_job=False))
        self._forget(agent)
        self._tell_roster()

    def _forget(self, agent: str) -> None:
        self._attached.pop(agent, None)
        self._entries.pop(agent, None)
        self._mailroom.forget(agent)

    def _schedule(self) -> None:
        deadline = self.job.next_deadline()
        is_needed = deadline is not None and not self._closed and self.job.phase is not Phase.OVER
        poll_at = max(deadline or 0.0, time.monotonic() + 0.001) if is_needed else inf
        if self._timer is not None:
            if self._poll_at <= poll_at < inf:  # the next look comes in time; put off by each event, it might never
                return
            self._timer.cancel()
            self._timer = None
        if is_needed:
            self._poll_at = poll_at
            self._timer = self._loop.call_later(poll_at - time.monotonic(), self._poll)

    def _poll(self) -> None:
        self._timer = None
        if not self._closed:
            self._carry_out(self.job.poll(time.monotonic()))

    def _tell_roster(self) -> None:
        self.events.attached(self._attached)
        self._training_log.attached(self._attached)
        if len(self._attached) <= SMALL_JOB:  # each must know the others should this agent die in the next moment
            self._tell_everybody()
        else:
            self._tell_everybody_soon()

    def _tell_heirs(self) -> None:
        """In a large job, the others are told with what changes next."""
        if not self._closed:
            self._tell(heirs(self._attached, self.agent_id))
            if len(self._attached) > SMALL_JOB:
                self._tell_everybody_soon()

    def _tell_everybody_soon(self) -> None:
        if not self._roster_due and not self._closed:
            self._roster_due = True
            self._loop.call_later(ROSTER_S, self._tell_everybody)

    def _tell_everybody(self) -> None:
        self._roster_due = False
        if not self._closed:
            self._tell([agent for agent in self._attached if agent != self.agent_id])

    def _tell(self, agents: list[str]) -> None:
        self._mailroom.tell(agents, self.roster, in_full=may_succeed(self._attached, self.agent_id))


def _entry_of(info: AgentInfo) -> RosterEntry:
    return RosterEntry(id=info.id, host=info.host, port=info.port)

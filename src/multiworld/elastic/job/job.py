"""Decide what happens to a job: who is in it, which workers are started, stopped, started again, and when it ends.

Pure: the coordinator feeds it with what happened and ``now`` (seconds of its monotonic clock), and carries out what it
returns. It polls at ``next_deadline()`` at the latest.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ...process.signal_names import signal_name
from ...wire.messages import Json
from .actions import (
    Action,
    End,
    Kill,
    Master,
    OpenMaster,
    Outcome,
    Reassign,
    Record,
    Regroup,
    Release,
    Reset,
    Start,
    WorkerReport,
)
from .failure import FailureCause, WorkerFailure, in_causal_order
from .layout import AgentInfo, Layout, Slot
from .options import DEFAULT_SHUTDOWN_S, MORE_RESTARTS, RestartBudget, RestartPolicy
from .phase import Phase, PhaseChange, advance
from .posts import Post, Posts, PostState
from .restart import DEFAULT_BUDGET, RestartLedger, fault_domain
from .roster import Roster
from .seats import candidates, fill, leaving
from .status import WorkerStatus

__all__ = ["LARGE_JOB", "MAX_FAILURES", "MAX_PLACES", "Job", "JobPlan", "Phase"]

LATE_S = 5.0  # after the grace, for an agent to report that it has killed its workers
JOB = "job"  # whose budget it is when everything is started again together
OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGKILL)
RUNNING = PostState.RUNNING
ORDER_S = 3.0  # an order has come, or is lost
MAX_PLACES = 128  # that are given out in one decision: the next one follows when the coordinator has listened
LARGE_JOB = 100  # hosts, of which one decision may take milliseconds
INCIDENT_S = 30.0  # failures this close to the last one may have caused it
MAX_FAILURES = 256  # that every host is told of at the end: the first ones
NOT_ITS_FAULT = (FailureCause.SIGNAL, FailureCause.AGENT_STOPPED)
NOT_BACK = "it is not among those that followed when another coordinator took over"


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What does not change while the job runs."""

    min_nodes: int
    max_nodes: int
    policy: RestartPolicy = RestartPolicy.AUTO
    budget: RestartBudget | None = None
    join_timeout_s: float = 600.0
    """How long to wait for hosts while there are fewer than ``min_nodes``."""
    cut_off_s: float = 600.0
    """How long a host that is cut off from most others waits for them, without workers."""
    last_call_s: float = 3.0
    """How long to wait for more than ``min_nodes`` at first."""
    shutdown_s: float = DEFAULT_SHUTDOWN_S
    resume_s: float = 3.0
    """How long a coordinator that takes over waits for the agents it knows of."""
    more_restarts: str = MORE_RESTARTS
    """How the user of this command has more of them."""


class Job:
    """One job. Every method that takes ``now`` returns what has to be done, in that order."""

    def __init__(self, plan: JobPlan, *, now: float, term: int = 1) -> None:
        self.plan = plan
        self.phase = Phase.GATHERING
        self.generation = 0
        self.outcome: Outcome | None = None
        self.wanted_nodes = plan.max_nodes
        """How many hosts have ranks at most; the others wait, as spares do."""
        self.uses_multiworld = False
        """Whether any worker was seen to, since all were started together last."""
        self._draining: set[str] = set()  # agents that are to go, once their workers have ended
        self._term = term
        self._ids = itertools.count(1)
        self._agents: dict[str, AgentInfo] = {}  # attached, in the order in which they came
        self._active: list[str] = []  # in the order of their node ranks; may name lost ones while resuming
        self._known: dict[str, AgentInfo] = {}  # also those that are gone
        self._posts = Posts()
        self._layout: Layout | None = None  # the last
        self._is_unsettled = False  # whether steps may be due
        self._is_told = True  # whether running workers know of their places in it
        self._ledger = RestartLedger()
        self._master: Master | None = None
        self._master_host: str | None = None  # the agent that was asked to serve it
        self._master_asked_at = now
        self._expected: set[str] = set()
        self._members_before: set[str] = set()
        self._enough_since: float | None = None
        self._short_since = now
        self._is_short = False
        self._formed_before = False
        self._not_before = now  # when all workers may be started again together
        self._stop_by = inf
        self._signal: int | None = None
        self._end_by = inf
        self._failing: Outcome | None = None
        self._failures: list[tuple[float, WorkerFailure]] = []
        self._kept_by_kernel: set[Slot] = set()
        self._failed_meanwhile: list[tuple[Slot, bool]] = []  # while it resumes; and whether by a fault of its own

    @classmethod
    def resume(cls, plan: JobPlan, roster: Roster, *, now: float, dead: Collection[str] = ()) -> Job:
        """Take over from the coordinator that told this roster last, and died.

        It waits for the roster's members, but for those that are known to be ``dead``; they report what they run.
        """
        job = cls(plan, now=now, term=roster.term + 1)
        job._signal = roster.signum
        job._failing = Outcome(status=1, text=roster.given_up) if roster.given_up else None
        job._known = {info.id: info for info in roster.known}
        job.uses_multiworld = roster.uses_multiworld
        for slot in job._slots([each for each in roster.finished if each in job._known]):
            job._posts.put(slot, Post(state=PostState.SUCCEEDED))
        job.generation, job._active = roster.generation, list(roster.active)
        job.wanted_nodes = plan.max_nodes if roster.wanted_nodes is None else roster.wanted_nodes
        job._draining = set(roster.draining)
        job._members_before = {member.id for member in roster.members}
        job._expected = job._members_before - set(dead)
        job._formed_before = bool(roster.active)
        job.phase = Phase.RESUMING
        return job

    # ---- what others may know

    @property
    def agents(self) -> list[AgentInfo]:
        return list(self._agents.values())

    def has(self, agent_id: str) -> bool:
        return agent_id in self._agents

    @property
    def active(self) -> list[str]:
        """The hosts that have ranks, in the order of their node ranks; ``vacant`` ones too."""
        return list(self._active)

    @property
    def active_agents(self) -> list[AgentInfo]:
        """What is known of the active hosts, also of those that are gone."""
        return [self._known[agent] for agent in self._active if agent in self._known]

    @property
    def finished(self) -> list[str]:
        """The active hosts whose workers have all ended well."""
        succeeded = self._posts.succeeded()
        return [agent for agent in self._active if agent in succeeded]

    @property
    def vacant(self) -> list[str]:
        """The hosts among them that are gone, and in whose place another is awaited."""
        there = self._agents.keys() | self._posts.succeeded()
        return [agent for agent in self._active if agent not in there]

    @property
    def draining(self) -> list[str]:
        """The hosts that are to go, once their workers have ended."""
        return sorted(self._draining)

    @property
    def signum(self) -> int | None:
        """The signal by which the job was asked to end."""
        return self._signal

    @property
    def given_up(self) -> str:
        """Why the job was given up, if it was."""
        return "" if self._failing is None else self._failing.text

    @property
    def policy(self) -> RestartPolicy:
        """Which policy holds: ``auto`` is decided by whether any worker was seen to use multiworld."""
        if self.plan.policy is not RestartPolicy.AUTO:
            return self.plan.policy
        return RestartPolicy.WORKER if self.uses_multiworld else RestartPolicy.ALL

    @property
    def budget(self) -> RestartBudget:
        if self.plan.budget is not None:
            return self.plan.budget
        return RestartBudget() if self.policy is RestartPolicy.ALL else DEFAULT_BUDGET

    def running_on(self, agent_id: str) -> set[str]:
        """Return the ids of the workers that run on a host, as far as we have heard."""
        return {self._posts[slot].id for slot in self._posts.alive_on(agent_id)}

    def describe(
        self, now: float, *, epoch_s: float = 0.0, pids: Mapping[str, int] | None = None
    ) -> list[WorkerStatus]:
        """Return what is known of every worker, for people. ``epoch_s``: when ``now`` was 0; ``pids``: by worker."""
        budget = self.budget
        return [
            WorkerStatus(
                rank=post.rank,
                agent=slot.agent,
                local_rank=slot.local_rank,
                worker=post.id,
                state=post.state.value,
                restarts=self._ledger.count(slot) + self._ledger.count(JOB),
                restarts_left=self._ledger.num_left(self._budget_key(slot), budget, now),
                since=round(epoch_s + post.started_at, 3) if post.is_alive else None,
                pid=(pids or {}).get(post.id) if post.is_alive else None,
                worlds=tuple(sorted(post.worlds)),
                uses_multiworld=post.uses_multiworld,
            )
            for slot, post in self._posts.items()
        ]

    @property
    def failures(self) -> list[WorkerFailure]:
        """What is known of the workers that failed, the last one last."""
        return [failure for _, failure in self._failures]

    def next_deadline(self) -> float | None:
        """Return when to poll next at the latest."""
        deadlines = [-inf if self._is_unsettled else inf]
        if self.phase is Phase.GATHERING:
            deadlines.append(self._short_since + self.plan.join_timeout_s)
            if self._enough_since is not None:
                deadlines.append(self._enough_since + self.plan.last_call_s)
        elif self.phase is Phase.RESUMING:
            deadlines.append(self._short_since + self.plan.resume_s)
        elif self.phase is Phase.RUNNING:
            if self._open_master is not None:  # else the store's coming is what starts them
                if len(self.active_agents) == len(self._active):
                    deadlines += [post.not_before for _, post in self._to_start()]
                if not self._is_told:
                    deadlines.append(-inf)
            if self._is_short:
                deadlines.append(self._short_since + self.plan.join_timeout_s)
        elif self.phase is Phase.STOPPING:
            deadlines.append(self._stop_by)
        elif self.phase is Phase.ENDING:
            deadlines.append(self._end_by)
        deadline = min(deadlines)
        return None if deadline == inf else deadline

    # ---- what happens

    def agent_attached(
        self,
        agent: AgentInfo,
        reports: Sequence[WorkerReport],
        now: float,
        master: Master | None = None,
        *,
        ages_s: Mapping[str, float] | None = None,
    ) -> list[Action]:
        """A host is there. One that brings running workers is welcome only while a new coordinator takes over.

        ``ages_s``: how long ago each of them was started.
        """
        is_awaited = self.phase is Phase.RESUMING and agent.id in self._expected
        is_done = agent.id in self.finished and all(report.succeeded for report in reports)
        if reports and not is_done and not (is_awaited and agent.id in self._active):
            return [Reset(agent=agent.id)]
        self._agents[agent.id] = self._known[agent.id] = agent
        self._expected.discard(agent.id)
        for report in reports:
            self._take_over(Slot(agent.id, report.local_rank), report, now, (ages_s or {}).get(report.worker, 0.0))
        if master is not None and master.generation == self.generation:
            self._master = master
        text = f"agent {agent.hostname} ({agent.host}:{agent.port}) is there, with {agent.num_workers} workers"
        fields: dict[str, Json] = {"agent": agent.id, "hostname": agent.hostname, "pid": agent.pid}
        joined = Record(kind="agent joined", text=text, fields=fields)
        if len(self._agents) > LARGE_JOB:  # in another turn: to welcome it took a while, and others may come, too
            self._is_unsettled = True
            return [joined]
        return [joined, *self._settle(now)]

    def agent_returned(
        self, agent_id: str, reports: Sequence[WorkerReport], now: float, master: Master | None = None
    ) -> list[Action]:
        """An agent has a new connection, and the workers that we know of: say again what may have been lost."""
        for report in reports:
            worker = self._posts.find(agent_id, report.worker)
            if worker is not None:
                worker.uses_multiworld |= report.uses_multiworld
                self.uses_multiworld |= report.uses_multiworld
                worker.worlds |= frozenset(report.worlds)
        if master is not None and master.generation == self.generation:
            self._master = master
        if self._master_host == agent_id and self._open_master is None:
            self._master_host = None  # so it is asked again
        actions: list[Action] = []
        for slot in self._posts.alive_on(agent_id):
            worker = self._posts[slot]
            if worker.state is PostState.STOPPING:
                actions += self._stop([slot], self._signal or signal.SIGTERM, forced=True)
            elif worker.assignment is not None:
                place = worker.place(self._known[agent_id].role)
                actions.append(Reassign(agent=agent_id, worker=worker.id, assignment=place))
        return actions + self._settle(now)

    def agent_runs(self, agent_id: str, workers: Collection[str], now: float) -> list[Action]:
        """An agent says which workers it runs. What it was ordered to do long ago, and has not, is ordered again."""
        alive = [(slot, self._posts[slot]) for slot in self._posts.alive_on(agent_id)]
        missing = [slot for slot, post in alive if post.id not in workers and now - post.started_at > ORDER_S]
        for slot in missing:  # the order to start it was lost, or the report of its end
            self._posts.change(slot, PostState.IDLE)
            self._posts[slot].not_before = now
        is_overdue = self._open_master is None and now - self._master_asked_at > ORDER_S
        if self._master_host == agent_id and is_overdue:
            self._master_host = None  # so it is asked again
        elif not missing:
            return []
        text = f"{len(missing)} workers of host {agent_id} are not there, though they were started"
        records: list[Action] = [Record(kind="missing", text=text, fields={"agent": agent_id})] if missing else []
        return records + self._settle(now)

    def agent_lost(self, agent_id: str, cause: str, now: float) -> list[Action]:
        """A host is gone, with its workers: ``cause`` is one clause."""
        agent = self._agents.pop(agent_id, None)
        self._expected.discard(agent_id)
        self._draining.discard(agent_id)
        actions: list[Action] = []
        if agent is not None:
            actions.append(_lost(agent, cause))
        return actions + self._settle(now)

    def master_opened(self, generation: int, address: str, port: int, now: float) -> list[Action]:
        """The store that ``OpenMaster`` ordered is there."""
        if generation == self.generation:
            self._master = Master(generation, address, port)
        return self._settle(now)

    def worker_greeted(self, agent_id: str, worker_id: str) -> None:
        """A worker connected to its agent, so it uses multiworld."""
        worker = self._posts.find(agent_id, worker_id)
        if worker is not None:
            worker.uses_multiworld = self.uses_multiworld = True

    def worker_in_world(self, agent_id: str, worker_id: str, world: str, *, left: bool = False) -> None:
        worker = self._posts.find(agent_id, worker_id)
        if worker is not None:
            worker.worlds = worker.worlds - {world} if left else worker.worlds | {world}

    def worker_exited(
        self,
        agent_id: str,
        worker_id: str,
        returncode: int,
        failure: WorkerFailure | None,
        now: float,
        *,
        ordered: bool = False,
    ) -> list[Action]:
        """A worker ended. ``failure`` describes it, if ``returncode`` is not 0.

        ``ordered``: a coordinator had it stopped, this one or the one before.
        """
        slot = self._posts.slot_of(agent_id, worker_id)
        if slot is None:
            return []
        worker = self._posts[slot]
        was_stopping = worker.state is PostState.STOPPING or ordered
        is_ending = self.phase is Phase.ENDING or self._signal is not None
        if returncode == 0 and (is_ending or not was_stopping):
            self._posts.change(slot, PostState.SUCCEEDED)
            return self._settle(now)
        self._posts.change(slot, PostState.IDLE)
        worker.not_before = now
        actions: list[Action] = []
        if returncode and not was_stopping:
            self._note_failure(failure, now)
            text, pid, cause = f"exit status {returncode}", None, None
            if failure is not None:
                text, pid, cause = failure.text, failure.pid, failure.cause
            actions.append(
                Record(
                    kind="worker failed",
                    text=f"rank {worker.rank} failed: {text}",
                    fields={"worker": worker_id, "agent": agent_id, "rank": worker.rank, "pid": pid},
                )
            )
            is_fault_of_its_own = returncode != -signal.SIGKILL or cause not in NOT_ITS_FAULT
            if cause is FailureCause.UNINTERRUPTIBLE:
                self._kept_by_kernel.add(slot)
            if self.phase is Phase.RUNNING:
                actions += self._worker_failed(slot, now, is_fault_of_its_own)
            elif self.phase is Phase.RESUMING:
                self._failed_meanwhile.append((slot, is_fault_of_its_own))
        elif returncode and (self._signal is not None or returncode not in OUR_SIGNALS):
            self._note_failure(failure, now)  # it may have failed before we had it stopped, and be the first
        return actions + self._settle(now)

    def _note_failure(self, failure: WorkerFailure | None, now: float) -> None:
        if failure is not None:
            self._failures.append((now, failure))

    def interrupted(self, signum: int, now: float, why: str = "") -> list[Action]:
        """Somebody asked the job to end: every worker gets the signal, and time to end well."""
        if self.phase in (Phase.ENDING, Phase.OVER):
            return []
        if self.phase is Phase.RESUMING and self._signal == signum:
            return []
        self._signal = signum
        self._failures.clear()  # what has been cured is not why it ends
        text = f"{why or signal_name(signum)}: all workers are asked to end"
        actions: list[Action] = [Record(kind="interrupted", text=text)]
        if self.phase is not Phase.RESUMING:  # else hosts still come with their workers, who get the signal then
            self._begin_to_end(now)
        return actions + self._stop(self._posts.alive(), signum, forced=True) + self._settle(now)

    def poll(self, now: float) -> list[Action]:
        return self._settle(now)

    # ---- what people ask for

    def drain(self, agent_id: str, now: float) -> list[Action]:
        """Let a host go: its workers are asked to end, then its agent ends well, and the others go on without it.

        Raises ValueError, with one line, if there would be too few left.
        """
        self._check_running()
        if agent_id not in self._agents:
            raise ValueError("that host is not part of the job now")
        agent = self._agents[agent_id]
        if agent_id in self._draining:
            raise ValueError(f"host {agent.hostname} is being drained already")
        others = [each for each in self._agents if each != agent_id and each not in self._draining]
        if agent_id in self._active and len(others) < self.plan.min_nodes:
            raise ValueError(
                f"host {agent.hostname} is needed: without it {len(others)} hosts are left, and the job needs at least "
                f"{self.plan.min_nodes}"
            )
        self._draining.add(agent_id)
        text = f"host {agent.hostname} ({agent.host}:{agent.port}) is being drained"
        return [Record(kind="draining", text=text, fields={"agent": agent_id}), *self._settle(now)]

    def scale(self, num_nodes: int, now: float) -> list[Action]:
        """Give ranks to this many hosts: the last ones wait from now on, or hosts that wait get ranks.

        Raises ValueError, with one line, if the job was not made for that.
        """
        self._check_running()
        if not self.plan.min_nodes <= num_nodes <= self.plan.max_nodes:
            raise ValueError(
                f"{num_nodes} hosts are not possible: the job was started with --nnodes "
                f"{self.plan.min_nodes}:{self.plan.max_nodes}"
            )
        self.wanted_nodes = num_nodes
        text = f"{num_nodes} hosts are to have ranks, of {len(self._agents)} that are there"
        return [Record(kind="scaled", text=text, fields={"nodes": num_nodes}), *self._settle(now)]

    def kill(self, rank: int) -> list[Action]:
        """Kill the worker of that rank, and take it as any other failure. Raises ValueError if none runs."""
        self._check_running()
        for slot in self._posts.alive():
            worker = self._posts[slot]
            if worker.rank == rank:
                record = Record(kind="killed", text=f"rank {rank} is killed, as asked", fields={"worker": worker.id})
                return [record, Kill(agent=slot.agent, worker=worker.id)]
        raise ValueError(f"no worker of rank {rank} runs now")

    def _check_running(self) -> None:
        if self.phase in (Phase.ENDING, Phase.OVER):
            raise ValueError("the job is ending")

    # ---- decisions

    def _budget_key(self, slot: Slot) -> Slot | str:
        """Return what a restart of the worker in that slot is counted for."""
        return JOB if self.policy is RestartPolicy.ALL else slot

    def _worker_failed(self, slot: Slot, now: float, is_fault_of_its_own: bool) -> list[Action]:
        policy, worker = self.policy, self._posts[slot]
        if slot in self._kept_by_kernel:  # so is the device, say, that another in its place would need
            return self._fail(f"rank {worker.rank} hangs in the kernel: nothing is started again", now)
        key = self._budget_key(slot)
        if not self._ledger.allows(key, self.budget, now):
            return self._fail(self._why_given_up(key, worker), now)
        self._ledger.note(key, now)
        delay_s = self._ledger.delay_s(key, now - worker.started_at) if is_fault_of_its_own else 0.0
        worker.not_before = self._not_before = now + delay_s
        running = [] if policy is RestartPolicy.WORKER else self._posts.alive()
        worlds = {each: self._posts[each].worlds for each in (slot, *running)}
        domain = fault_domain(policy, slot, worlds, {slot, *running})
        worker.worlds = frozenset()
        if policy is RestartPolicy.ALL:
            self._begin_to_stop(now)
        others = [each for each in running if each in domain]
        what = "all workers are" if policy is RestartPolicy.ALL else f"rank {worker.rank} is"
        also = f", and {len(others)} that share a world with it" if others and policy is RestartPolicy.WORLD else ""
        when = f" in {delay_s:g} s" if delay_s else ""
        text = f"{what} started again{also}{when}"
        return [Record(kind="restart", text=text, fields={"worker": worker.id}), *self._stop(others, signal.SIGTERM)]

    def _why_given_up(self, key: Slot | str, worker: Post) -> str:
        budget, count = self.budget, self._ledger.count(key)
        who = "the job" if key == JOB else f"rank {worker.rank}"
        if not budget.max_restarts:
            return f"{who} may not be started again: {self.plan.more_restarts}"
        within = f" in {budget.per_s:g} s" if budget.per_s is not None else ""
        allowed = f"may be {_times(budget.max_restarts)}{within}"
        return f"{who} was started again {_times(count)}, and {allowed}: {self.plan.more_restarts}"

    def _fail(self, reason: str, now: float) -> list[Action]:
        """The job is given up: stop what runs, and end with what failed first."""
        self._failures = [(at, failure) for at, failure in self._failures if now - at <= INCIDENT_S]
        self._failing = Outcome(status=1, text=reason)
        self._begin_to_end(now)
        return [Record(kind="giving up", text=reason), *self._stop(self._posts.alive(), signal.SIGTERM)]

    def _settle(self, now: float) -> list[Action]:
        """Take every step that is due; each may make the next one possible."""
        steps = {
            Phase.GATHERING: self._gather,
            Phase.RESUMING: self._resume,
            Phase.RUNNING: self._run,
            Phase.STOPPING: self._wait_for_stop,
            Phase.ENDING: self._wait_for_end,
        }
        actions: list[Action] = []
        self._is_unsettled = False
        while True:
            before = self.phase
            if before in steps:
                actions += steps[before](now)
            if self.phase is before:
                return actions + self._release()

    def _gather(self, now: float) -> list[Action]:
        come = candidates(self._agents, self._active, self._draining)
        if len(come) < self.plan.min_nodes:
            self._enough_since = None
            if now - self._short_since >= self.plan.join_timeout_s:
                return self._fail(
                    f"only {len(come)} of {self.plan.min_nodes} hosts came within {self.plan.join_timeout_s:g} s", now
                )
            return []
        if self._enough_since is None:
            self._enough_since = now
        is_last_call_over = self._formed_before or now - self._enough_since >= self.plan.last_call_s
        if len(come) < self.wanted_nodes and not is_last_call_over:
            return []
        self._active = come[: self.wanted_nodes]
        self._enough_since, self._formed_before = None, True
        sizes = ((agent, self._known[agent].num_workers) for agent in self._active)
        self._posts.begin_anew(sizes, not_before=self._not_before)
        self._go(PhaseChange.FORMED)
        self._is_short = False
        return self._next_generation()

    def _next_generation(self) -> list[Action]:
        self.generation += 1
        self._master, self._master_host = None, None
        size = sum(self._known[agent].num_workers for agent in self._active)
        text = f"generation {self.generation}: {len(self._active)} hosts, {size} workers"
        fields = {"num_hosts": len(self._active), "num_workers": size}
        return [Record(kind="generation", text=text, fields=fields)]

    def _provide_master(self, now: float) -> list[Action]:
        """Have the store of this generation served by a host that is there: the first, if it is."""
        if self._open_master is not None and (self._master_host is None or self._master_host in self._agents):
            return []
        if self._master_host in self._agents:
            return []  # it has been asked
        host = next((agent for agent in self._active if agent in self._agents), None)
        if host is None:
            return []
        self._master, self._master_host, self._master_asked_at = None, host, now
        return [OpenMaster(agent=host, generation=self.generation)]

    def _resume(self, now: float) -> list[Action]:
        if self._expected and now - self._short_since < self.plan.resume_s:
            return []
        self._expected.clear()
        failed, self._failed_meanwhile = self._failed_meanwhile, []
        if not self._formed_before and self._signal is None and self._failing is None:
            self._go(PhaseChange.FOUND_UNFORMED)
            self._short_since = now
            return []
        self._go(PhaseChange.RESUMED)
        absent = self._members_before - self._agents.keys() - set(self.finished)
        lost = [self._known[agent] for agent in self._active if agent in absent and agent in self._known]
        actions: list[Action] = [_lost(agent, NOT_BACK) for agent in lost]
        if self._signal is not None or self._failing is not None:
            self._begin_to_end(now)
            return actions + self._stop(self._posts.alive(), self._signal or signal.SIGTERM)
        present = [agent for agent in self._active if agent in self._agents]
        for slot in self._slots(present):
            if self._posts.get(slot) is None:
                self._posts.put(slot, Post())
        if self.policy is RestartPolicy.ALL:
            self._ledger.merge(self._posts, JOB)
        if self.policy is RestartPolicy.ALL and set(self._active) - self._agents.keys() - set(self.finished):
            failed = []  # a host is lost: all are started again for that, and what failed with it may be its doing
        for slot, is_fault_of_its_own in failed:
            post = self._posts.get(slot) if slot.agent in self._agents else None
            if self.phase is Phase.RUNNING and post is not None and post.state is PostState.IDLE:
                actions += self._worker_failed(slot, now, is_fault_of_its_own)
        if self.phase is not Phase.RUNNING or self.policy is not RestartPolicy.ALL:
            return actions
        return actions + self._stop_all(now) if self._posts.idle() else actions

    def _run(self, now: float) -> list[Action]:
        actions = self._retire(now)
        if self.phase is Phase.RUNNING:
            actions += self._change_membership(now)
        if self.phase is not Phase.RUNNING:
            return actions
        if self._is_short and now - self._short_since >= self.plan.join_timeout_s:
            left = sum(agent in self._agents for agent in self._active)
            reason = f"{left} of {self.plan.min_nodes} hosts are left, and none came in their place"
            return actions + self._fail(f"{reason} within {self.plan.join_timeout_s:g} s", now)
        if self._posts.all_succeeded() and self._is_complete:
            self._begin_to_end(now)
            return actions
        return actions + self._provide_master(now) + self._start_idle(now)

    @property
    def _is_complete(self) -> bool:
        """Whether every host that has ranks is known, and holds its slots."""
        if any(agent not in self._known for agent in self._active):
            return False
        return all(self._posts.get(slot) is not None for slot in self._slots())

    def _go(self, change: PhaseChange) -> None:
        self.phase = advance(self.phase, change)

    def _begin_to_end(self, now: float) -> None:
        self._go(PhaseChange.END)
        self._end_by = now + self.plan.shutdown_s + LATE_S

    def _begin_to_stop(self, now: float) -> None:
        self.uses_multiworld = False
        self._go(PhaseChange.STOP)
        self._stop_by = now + self.plan.shutdown_s + LATE_S

    def _leaving(self) -> set[str]:
        there = {*self._agents, *self.finished}
        return leaving(self._active, there, self._draining, self.wanted_nodes)

    def _retire(self, now: float) -> list[Action]:
        """Ask the workers of hosts that leave to end."""
        leaving = self._leaving()
        leaving -= self._posts.succeeded()
        if leaving and self.policy is RestartPolicy.ALL:
            return self._stop_all(now)
        retired = [slot for agent in self._active if agent in leaving for slot in self._posts.alive_on(agent)]
        return self._stop(retired, signal.SIGTERM)

    def _release(self) -> list[Action]:
        """Let go of drained hosts that have nothing to do any more."""
        if not self._draining or self.phase in (Phase.RESUMING, Phase.ENDING, Phase.OVER):
            return []
        busy = self._posts.busy()
        if self.phase is Phase.RUNNING:
            busy |= set(self._active) - self._posts.succeeded()
        actions: list[Action] = []
        for agent in [each for each in self._agents if each in self._draining and each not in busy]:
            info = self._agents.pop(agent)
            self._draining.discard(agent)
            text = f"host {info.hostname} ({info.host}:{info.port}) has been drained, and leaves the job"
            actions += [Record(kind="drained", text=text, fields={"agent": agent}), Release(agent=agent)]
        return actions

    def _change_membership(self, now: float) -> list[Action]:
        """Let go of hosts that are lost, and take in those that wait, if the policy allows it while workers run."""
        done = self._posts.succeeded()
        busy = self._posts.busy()
        gone = {agent for agent in self._leaving() if agent not in busy}
        present = {agent for agent in self._active if agent in self._agents and agent not in gone}
        staying = dict.fromkeys(agent for agent in self._active if agent in present or agent in done)
        room = self.wanted_nodes - len(staying)
        waiting = [agent for agent in candidates(self._agents, self._active, self._draining) if agent not in staying]
        coming = waiting[: max(0, room)]
        vacant = [agent for agent in self._active if agent not in staying]
        if not vacant and not coming:
            return []
        newly = [slot for agent in vacant for slot in self._posts.drop(agent)]
        for slot in newly:
            self._ledger.forget(slot)
        if self.policy is RestartPolicy.ALL:
            if coming and not vacant and not self._posts.has_begun():  # nothing runs yet: they are in time
                return self._admit([*staying], vacant, coming)
            return self._stop_all(now)
        if len(staying) + len(coming) >= self.plan.min_nodes:
            return self._admit([*staying], vacant, coming)
        if not newly and self._is_short:  # we wait already
            return []
        if not self._is_short:
            self._is_short, self._short_since = True, now
        text = f"{len(staying)} hosts are left of at least {self.plan.min_nodes}: waiting for others"
        return [Record(kind="waiting", text=text)]

    def _admit(self, staying: list[str], vacant: list[str], coming: list[str]) -> list[Action]:
        """Give those that come the ranks of those that are lost, as far as there are as many; others move up."""
        coming = [agent for agent in coming if agent not in self._active]
        self._active = fill(self._active, staying=staying, vacant=vacant, coming=coming, known=self._known)
        self._is_short = False
        for slot in self._slots(coming):
            self._posts.put(slot, Post())
        return self._next_generation()

    def _stop_all(self, now: float) -> list[Action]:
        """Everything is started again together, with the hosts that are there then."""
        self._begin_to_stop(now)
        return self._stop(self._posts.alive(), signal.SIGTERM)

    @property
    def _open_master(self) -> tuple[str, int] | None:
        """Where this generation's store is, once it is there."""
        if self._master is None or self._master.generation != self.generation:
            return None
        return self._master.address, self._master.port

    def _start_idle(self, now: float) -> list[Action]:
        """Start what is due, and tell running workers of places that changed, once the generation's store is there."""
        master, agents = self._open_master, self.active_agents
        if master is None or len(agents) < len(self._active):  # the latter after a takeover
            return []
        if self._layout is None or not self._layout.is_of(agents, generation=self.generation, master=master):
            self._layout = Layout(agents, generation=self.generation, master=master)
            self._is_told = False
        actions = [] if self._is_told else self._tell_places(self._layout)
        due = [slot for slot, post in self._to_start() if post.not_before <= now]
        for slot in due[: max(0, MAX_PLACES - len(actions))]:
            worker, restarts = self._posts[slot], self._ledger.count(slot) + self._ledger.count(JOB)
            worker.id = f"{self._term}.{next(self._ids)}"
            worker.assignment = self._layout.assignment(slot, restarts=restarts)
            worker.membership = self._layout.membership
            worker.started_at = now
            worker.worlds = frozenset()
            self._posts.change(slot, PostState.RUNNING)
            actions.append(Start(agent=slot.agent, worker=worker.id, assignment=worker.assignment))
        return actions

    def _to_start(self) -> list[tuple[Slot, Post]]:
        leaving = self._leaving() if self._posts.idle() else set()
        return [(slot, post) for slot, post in self._posts.idle().items() if slot.agent not in leaving]

    def _tell_places(self, layout: Layout) -> list[Action]:
        """Tell the workers that run where they are now. All of one host at once: no two may have the same rank."""
        actions: list[Action] = []
        regrouped: list[str] = []
        membership, leaving = layout.membership, self._leaving()
        for agent in [agent for agent in self._active if agent not in leaving]:
            posts = self._posts.on(agent).values()
            outdated = [post for post in posts if post.state is RUNNING and post.membership is not membership]
            if not outdated:
                continue
            if layout.have_moved(agent, [post.told() for post in outdated]):
                actions += [self._move(agent, post, layout) for post in outdated]
            elif not all(post.is_of(membership) for post in outdated):
                regrouped.append(agent)
            for post in outdated:
                post.membership = membership
            if len(actions) >= MAX_PLACES:
                break
        else:
            self._is_told = True
        if regrouped:
            actions.append(Regroup(agents=tuple(regrouped), membership=membership))
        return actions

    def _move(self, agent: str, post: Post, layout: Layout) -> Reassign:
        before = post.told()
        post.assignment = layout.assignment(Slot(agent, before.local_rank), restarts=before.restarts)
        return Reassign(agent=agent, worker=post.id, assignment=post.assignment)

    def _wait_for_stop(self, now: float) -> list[Action]:
        self._posts.drop_lost(self._agents)
        if self._posts.any_alive() and now < self._stop_by:
            return []
        actions: list[Action] = []
        for agent in {slot.agent for slot in self._posts.alive()}:
            info = self._agents.pop(agent)
            text = f"host {info.hostname} ({info.host}:{info.port}) cannot end its workers, and is given up"
            actions += [Record(kind="stuck", text=text, fields={"agent": agent}), Reset(agent=agent)]
        self._go(PhaseChange.STOPPED)
        self._short_since = now
        return actions

    def _wait_for_end(self, now: float) -> list[Action]:
        self._posts.drop_lost(self._agents)
        if self._posts.any_alive() and now < self._end_by:
            return []
        self._go(PhaseChange.ENDED)
        self.outcome = self._outcome()
        return [Record(kind="end", text=self.outcome.text), End(outcome=self.outcome)]

    def _outcome(self) -> Outcome:
        failures = tuple(failure for _, failure in self._failures)
        if len(failures) > MAX_FAILURES:
            failures = tuple(in_causal_order(failures)[:MAX_FAILURES])
        if self._failing is not None:
            return replace(self._failing, failures=failures)
        if self._signal is None:
            return Outcome(status=0, text="all workers have ended well")
        name = signal_name(self._signal)
        if self._posts.all_succeeded():
            return Outcome(status=0, text=f"ended by {name}: all workers have ended well")
        return Outcome(status=128 + self._signal, text=f"ended by {name}", failures=failures, signum=self._signal)

    # ---- workers

    def _slots(self, agents: list[str] | None = None) -> list[Slot]:
        chosen = self._active if agents is None else agents
        return [Slot(agent, rank) for agent in chosen for rank in range(self._known[agent].num_workers)]

    def _stop(self, slots: Iterable[Slot], signum: int, *, forced: bool = False) -> list[Action]:
        return [*self._posts.stop(slots, signum, self.plan.shutdown_s, forced=forced)]

    def _take_over(self, slot: Slot, report: WorkerReport, now: float, age_s: float) -> None:
        self.generation = max(self.generation, report.assignment.generation)  # the roster may be older
        self.uses_multiworld |= report.uses_multiworld
        self._posts.put(slot, Post.of_report(report, now, age_s))
        self._ledger.restore(slot, [now - age for age in report.restart_ages_s])


def _lost(agent: AgentInfo, cause: str) -> Record:
    text = f"agent {agent.hostname} ({agent.host}:{agent.port}) is lost: {cause}"
    fields: dict[str, Json] = {"agent": agent.id, "hostname": agent.hostname, "pid": agent.pid, "cause": cause}
    return Record(kind="agent lost", text=text, fields=fields)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

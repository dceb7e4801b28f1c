"""Decide what happens to a job: who is in it, which workers are started, stopped, started again, and when it ends.

Pure: the coordinator feeds it with what happened and ``now`` (seconds of its monotonic clock), and carries out what it
returns. It polls at ``next_deadline()`` at the latest.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from ...process.signal_names import signal_name
from ...wire.messages import Json
from ...world.launcher.remote_nodes import RemoteNodes
from .actions import (
    OUR_SIGNALS,
    Action,
    End,
    Kill,
    Master,
    Outcome,
    Reassign,
    Record,
    Release,
    Reset,
    Stop,
    WorkerReport,
)
from .ending import Ending
from .failure import FailureCause, WorkerFailure
from .layout import AgentInfo, Slot
from .master import ORDER_S, MasterHost
from .nodes import NodeChange, Nodes
from .options import RestartPolicy
from .phase import Phase, PhaseChange, advance
from .placement import Placement
from .plan import JobPlan
from .recurrence import Recurrence
from .remote import RemoteMaster
from .restart import Restarts
from .roster import Roster
from .slots import Post, Posts, PostState
from .status import WorkerStatus

__all__ = ["LARGE_JOB", "Job", "Phase"]

LATE_S = 5.0  # after the grace, for an agent to report that it has killed its workers
LARGE_JOB = 100  # hosts; in a larger job one decision may take milliseconds
NOT_ITS_FAULT = (FailureCause.SIGNAL, FailureCause.AGENT_STOPPED)
NOT_BACK = "it is not among those that followed when another coordinator took over"


class Job:
    """One job. Every method that takes ``now`` returns what has to be done, in that order."""

    def __init__(self, plan: JobPlan, *, now: float, term: int = 1) -> None:
        self.plan = plan
        self.phase = Phase.GATHERING
        self.generation = 0
        self.outcome: Outcome | None = None
        self.nodes = Nodes(plan.max_nodes)
        self.restarts = Restarts(plan, now)
        self.ending = Ending()
        self._posts = Posts()
        self.remote_master = RemoteMaster(self._posts)
        self._placement = Placement(self.nodes, self._posts, self.restarts, term=term)
        self._master = MasterHost(self.nodes, now)
        self._expected: set[str] = set()
        self._members_before: set[str] = set()
        self._enough_since: float | None = None
        self._short_since = now
        self._is_short = False
        self._formed_before = False
        self._stop_by = self._end_by = inf
        self._is_unsettled = False  # whether steps may be due
        self._failed_meanwhile: list[tuple[Slot, bool]] = []  # while it resumes; and whether by a fault of its own
        self._recurrence = Recurrence(plan.more_restarts if plan.budget is None else None)

    @classmethod
    def resume(cls, plan: JobPlan, roster: Roster, *, now: float, dead: Collection[str] = ()) -> Job:
        """Take over from the coordinator that told this roster last, and died.

        It waits for the roster's members, but for those that are known to be ``dead``; they report what they run.
        """
        job = cls(plan, now=now, term=roster.term + 1)
        job.ending = Ending(signum=roster.signum, given_up=roster.given_up)
        job.restarts.uses_multiworld = roster.uses_multiworld
        nodes, job.generation = job.nodes, roster.generation
        nodes.known = {info.id: info for info in roster.known}
        nodes.active, nodes.draining = list(roster.active), set(roster.draining)
        nodes.wanted = plan.max_nodes if roster.wanted_nodes is None else roster.wanted_nodes
        for slot in nodes.slots([each for each in roster.finished if each in nodes.known]):
            job._posts.put(slot, Post(state=PostState.SUCCEEDED))
        job._members_before = {member.id for member in roster.members}
        job._expected = job._members_before - set(dead)
        job._formed_before = bool(roster.active)
        job.phase = Phase.RESUMING
        return job

    # ---- what others may know

    @property
    def finished(self) -> list[str]:
        """The active hosts whose workers have all ended well."""
        succeeded = self._posts.succeeded()
        return [agent for agent in self.nodes.active if agent in succeeded]

    @property
    def vacant(self) -> list[str]:
        """The active hosts that are gone, and in whose place another is awaited."""
        there = self.nodes.agents.keys() | self._posts.succeeded()
        return [agent for agent in self.nodes.active if agent not in there]

    def running_on(self, agent_id: str) -> set[str]:
        """Return the ids of the workers that run on a host, as far as we have heard."""
        return {post.id for _, post in self._posts.alive_on(agent_id)}

    def describe(
        self, now: float, *, epoch_s: float = 0.0, pids: Mapping[str, int] | None = None
    ) -> list[WorkerStatus]:
        """Return what is known of every worker, for people. ``epoch_s``: when ``now`` was 0; ``pids``: by worker."""
        return [
            WorkerStatus(
                rank=post.rank,
                agent=slot.agent,
                local_rank=slot.local_rank,
                worker=post.id,
                state=post.state.value,
                restarts=self.restarts.count(slot),
                restarts_left=self.restarts.num_left(slot, now),
                since=round(epoch_s + post.started_at, 3) if post.is_alive else None,
                pid=(pids or {}).get(post.id) if post.is_alive else None,
                worlds=tuple(sorted(post.worlds)),
                uses_multiworld=post.uses_multiworld,
            )
            for slot, post in self._posts.items()
        ]

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
            if self._master.address(self.generation) is not None:  # else the store's coming is what starts them
                if len(self.nodes.active_agents) == len(self.nodes.active):
                    deadlines += [post.not_before for _, post in self._placement.waiting()]
                if not self._placement.is_told:
                    deadlines.append(-inf)
            deadlines.append(self.remote_master.stop_at)
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
        if reports and not is_done and not (is_awaited and agent.id in self.nodes.active):
            return [Reset(agent=agent.id)]
        self.nodes.attach(agent)
        self._expected.discard(agent.id)
        for report in reports:
            self._take_over(Slot(agent.id, report.local_rank), report, now, (ages_s or {}).get(report.worker, 0.0))
        self._master.opened(master, self.generation)
        where, workers = f"{agent.hostname} ({agent.host}:{agent.port})", _counted(agent.num_workers, "worker")
        fields: dict[str, Json] = {"agent": agent.id, "hostname": agent.hostname, "pid": agent.pid}
        joined: list[Action] = [
            Record(kind="agent joined", text=f"agent {where} is there, with {workers}", fields=fields)
        ]
        if self.ending.signum is not None:  # the stop that a worker got before may have been a quiet one
            joined += self._stop_again(agent.id)
        if len(self.nodes.agents) > LARGE_JOB:  # in another turn: to welcome it took a while, and others may come, too
            self._is_unsettled = True
            return joined
        return joined + self.poll(now)

    def agent_returned(
        self, agent_id: str, reports: Sequence[WorkerReport], now: float, master: Master | None = None
    ) -> list[Action]:
        """An agent has a new connection, and the workers that we know of: say again what may have been lost."""
        for report in reports:
            worker = self._posts.find(agent_id, report.worker)
            if worker is not None:
                worker.uses_multiworld |= report.uses_multiworld
                self.restarts.uses_multiworld |= report.uses_multiworld
                worker.worlds |= frozenset(report.worlds)
        self._master.opened(master, self.generation)
        self._master.ask_again(agent_id, self.generation, now, patience_s=-inf)
        actions = self._stop_again(agent_id)
        for _, worker in self._posts.alive_on(agent_id):
            if worker.state is not PostState.STOPPING and worker.assignment is not None:
                place = worker.place(self.nodes.known[agent_id].role)
                actions.append(Reassign(agent=agent_id, worker=worker.id, assignment=place))
        return actions + self.poll(now)

    def agent_runs(self, agent_id: str, workers: Collection[str], now: float) -> list[Action]:
        """An agent says which workers it runs. What it was ordered to do long ago, and has not, is ordered again."""
        alive = self._posts.alive_on(agent_id)
        missing = [slot for slot, post in alive if post.id not in workers and now - post.started_at > ORDER_S]
        for slot in missing:  # the order to start it was lost, or the report of its end
            self._posts.vacate(slot, now)
        if not self._master.ask_again(agent_id, self.generation, now) and not missing:
            return []
        text = f"{len(missing)} workers of host {agent_id} are not there, though they were started"
        records: list[Action] = [Record(kind="missing", text=text, fields={"agent": agent_id})] if missing else []
        return records + self.poll(now)

    def agent_lost(self, agent_id: str, cause: str, now: float) -> list[Action]:
        """A host is gone, with its workers: ``cause`` is one clause."""
        agent = self.nodes.lose(agent_id)
        self._expected.discard(agent_id)
        return [*([] if agent is None else [_lost(agent, cause)]), *self.poll(now)]

    def master_opened(self, generation: int, address: str, port: int, now: float) -> list[Action]:
        """The store that ``OpenMaster`` ordered is there."""
        self._master.opened(Master(generation, address, port), self.generation)
        return self.poll(now)

    def worker_greeted(self, agent_id: str, worker_id: str) -> None:
        """A worker connected to its agent, so it uses multiworld."""
        worker = self._posts.find(agent_id, worker_id)
        if worker is not None:
            worker.uses_multiworld = self.restarts.uses_multiworld = True

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
        is_ending = self.phase is Phase.ENDING or self.ending.signum is not None
        if self.phase is Phase.RUNNING and self.remote_master.is_over_for(worker):
            self._posts.change(slot, PostState.SUCCEEDED)
            return self._late_failure(worker, returncode, failure) + self.poll(now)
        if returncode == 0 and (is_ending or not was_stopping):
            self._posts.change(slot, PostState.SUCCEEDED)
            self.remote_master.succeeded(worker, now)
            return self.poll(now)
        self._posts.vacate(slot, now)
        actions: list[Action] = []
        if returncode and not was_stopping:
            self.ending.note(failure, now)
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
                self.restarts.kept_by_kernel.add(slot)
            may_start = self.restarts.num_left(slot, now) > 0
            hopeless = self._recurrence.why_hopeless(slot, failure, self._posts.items(), now, may_start=may_start)
            if self.phase is Phase.RUNNING and hopeless:
                actions += self._fail(hopeless, now)
            elif self.phase is Phase.RUNNING:
                actions += self._worker_failed(slot, now, is_fault_of_its_own)
            elif self.phase is Phase.RESUMING:
                self._failed_meanwhile.append((slot, is_fault_of_its_own))
        elif returncode and (self.ending.signum is not None or returncode not in OUR_SIGNALS):
            self.ending.note(failure, now)  # it may have failed before we had it stopped, and be the first
        return actions + self.poll(now)

    def remote_told(self, news: RemoteNodes, now: float) -> list[Action]:
        """The master of remote tensors says how its nodes stand. One that has ended well, and is needed, starts again.

        It is a failure unless the master had closed the connection to it before.
        """
        self.remote_master.told(news, now)
        actions: list[Action] = []
        for slot, node in self.remote_master.lacking(news):
            if self.phase is not Phase.RUNNING or slot.agent not in self.nodes.agents:
                continue
            self._posts.vacate(slot, now)
            fields: dict[str, Json] = {"worker": node.id, "agent": slot.agent, "rank": node.rank}
            if self.remote_master.was_released(node):
                text = f"rank {node.rank} had ended with the last connection of its master, and is started again"
                actions.append(Record(kind="restart", text=text, fields=fields))
            else:
                text = f"rank {node.rank} failed: its process ended, with exit status 0, while its master needs it"
                actions.append(Record(kind="worker failed", text=text, fields=fields))
                actions += self._worker_failed(slot, now, is_fault_of_its_own=True)
        return actions + self.poll(now) if actions else []

    def interrupted(self, signum: int, now: float, why: str = "") -> list[Action]:
        """Somebody asked the job to end: every worker gets the signal, and time to end well."""
        if self.phase in (Phase.ENDING, Phase.OVER):
            return []
        if self.phase is Phase.RESUMING and self.ending.signum == signum:
            return []
        self.ending.interrupt(signum)
        text = f"{why or signal_name(signum)}: all workers are asked to end"
        actions: list[Action] = [Record(kind="interrupted", text=text)]
        if self.phase is not Phase.RESUMING:  # else hosts still come with their workers, who get the signal then
            self._begin_to_end(now)
        return actions + self._stop(self._posts.alive(), signum, forced=True) + self.poll(now)

    def poll(self, now: float) -> list[Action]:
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
            has_waited = before in (Phase.RESUMING, Phase.STOPPING) and self.phase is not before
            self._is_unsettled |= has_waited and len(self.nodes.agents) > LARGE_JOB  # then the rest has its own turn
            if self._is_unsettled or self.phase is before:
                return actions + self._release()

    # ---- what people ask for

    def drain(self, agent_id: str, now: float) -> list[Action]:
        """Let a host go: its workers are asked to end, then its agent ends well, and the others go on without it.

        Raises ValueError, with one line, if there would be too few left.
        """
        self._check_running()
        agent = self.nodes.drain(agent_id, self.plan.min_nodes)
        text = f"host {agent.hostname} ({agent.host}:{agent.port}) is being drained"
        return [Record(kind="draining", text=text, fields={"agent": agent_id}), *self.poll(now)]

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
        self.nodes.wanted = num_nodes
        text = f"{num_nodes} hosts are to have ranks, of {len(self.nodes.agents)} that are there"
        return [Record(kind="scaled", text=text, fields={"nodes": num_nodes}), *self.poll(now)]

    def kill(self, rank: int) -> list[Action]:
        """Kill the worker of that rank, and take it as any other failure. Raises ValueError if none runs."""
        self._check_running()
        for slot, worker in self._posts.alive():
            if worker.rank == rank:
                record = Record(kind="killed", text=f"rank {rank} is killed, as asked", fields={"worker": worker.id})
                return [record, Kill(agent=slot.agent, worker=worker.id)]
        raise ValueError(f"no worker of rank {rank} runs now")

    def _check_running(self) -> None:
        if self.phase in (Phase.ENDING, Phase.OVER):
            raise ValueError("the job is ending")

    # ---- decisions

    def _worker_failed(self, slot: Slot, now: float, is_fault_of_its_own: bool) -> list[Action]:
        worker = self._posts[slot]
        reason = self.restarts.why_given_up(slot, worker, now)
        if reason is not None:
            return self._fail(reason, now)
        delay_s = self.restarts.note(slot, worker, now, is_fault_of_its_own=is_fault_of_its_own)
        others, policy = self.restarts.others(slot, self._posts), self.restarts.policy
        worker.worlds = frozenset()
        nodes = [] if policy is RestartPolicy.ALL else self._ended_nodes(worker, now)
        if policy is RestartPolicy.ALL:
            self._begin_to_stop(now)
        what = "all workers are" if policy is RestartPolicy.ALL else f"rank {worker.rank} is"
        also = f", and {len(others)} that share a world with it" if others and policy is RestartPolicy.WORLD else ""
        when = f" in {delay_s:g} s" if delay_s else ""
        again = f", and its {_counted(len(nodes), 'node')} that had ended" if nodes else ""
        text = f"{what} started again{also}{again}{when}"
        return [Record(kind="restart", text=text, fields={"worker": worker.id}), *self._stop(others, signal.SIGTERM)]

    def _late_failure(self, worker: Post, returncode: int, failure: WorkerFailure | None) -> list[Action]:
        if returncode in (0, *OUR_SIGNALS):
            return []
        why = f"exit status {returncode}" if failure is None else failure.text
        text = f"rank {worker.rank} failed after its master had ended well: {why}"
        return [Record(kind="worker failed", text=text, fields={"worker": worker.id, "rank": worker.rank})]

    def _ended_nodes(self, worker: Post, now: float) -> list[Post]:
        return self.remote_master.failed(worker, now, self.nodes.agents.__contains__)

    def _fail(self, reason: str, now: float) -> list[Action]:
        """The job is given up: stop what runs, and end with what failed first."""
        self.ending.give_up(reason, now)
        self._begin_to_end(now)
        return [Record(kind="giving up", text=reason), *self._stop(self._posts.alive(), signal.SIGTERM)]

    def _gather(self, now: float) -> list[Action]:
        nodes, come = self.nodes, self.nodes.candidates()
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
        if len(come) < nodes.wanted and not is_last_call_over:
            return []
        nodes.active = come[: nodes.wanted]
        self._enough_since, self._formed_before = None, True
        sizes = ((agent, nodes.known[agent].num_workers) for agent in nodes.active)
        self._posts.begin_anew(sizes, not_before=self.restarts.not_before)
        self.remote_master.began_anew()
        self._go(PhaseChange.FORMED)
        self._is_short = False
        return self._next_generation()

    def _next_generation(self) -> list[Action]:
        self.generation += 1
        self._master.forget()
        active = self.nodes.active
        size = sum(self.nodes.known[agent].num_workers for agent in active)
        text = f"generation {self.generation}: {_counted(len(active), 'host')}, {_counted(size, 'worker')}"
        fields = {"num_hosts": len(active), "num_workers": size}
        return [Record(kind="generation", text=text, fields=fields)]

    def _resume(self, now: float) -> list[Action]:
        if self._expected and now - self._short_since < self.plan.resume_s:
            return []
        self._expected.clear()
        failed, self._failed_meanwhile = self._failed_meanwhile, []
        if not self._formed_before and not self.ending.has_begun:
            self._go(PhaseChange.FOUND_UNFORMED)
            self._short_since = now
            return []
        self._go(PhaseChange.RESUMED)
        nodes = self.nodes
        absent = self._members_before - nodes.agents.keys() - set(self.finished)
        lost = [nodes.known[agent] for agent in nodes.active if agent in absent and agent in nodes.known]
        actions: list[Action] = [_lost(agent, NOT_BACK) for agent in lost]
        if self.ending.has_begun:
            self._begin_to_end(now)
            return actions + self._stop(self._posts.alive(), self.ending.signum or signal.SIGTERM)
        present = [agent for agent in nodes.active if agent in nodes.agents]
        for slot in [slot for slot in nodes.slots(present) if self._posts.get(slot) is None]:
            self._posts.put(slot, Post())
        if self.restarts.are_of_all:
            self.restarts.merge(self._posts)
        if self.restarts.are_of_all and set(nodes.active) - nodes.agents.keys() - set(self.finished):
            failed = []  # a host is lost: all are started again for that, and what failed with it may be its doing
        for slot, is_fault_of_its_own in failed:
            post = self._posts.get(slot) if slot.agent in nodes.agents else None
            if self.phase is Phase.RUNNING and post is not None and post.state is PostState.IDLE:
                actions += self._worker_failed(slot, now, is_fault_of_its_own)
        if self.phase is not Phase.RUNNING or not self.restarts.are_of_all:
            return actions
        return actions + self._stop_all(now) if self._posts.idle() else actions

    def _run(self, now: float) -> list[Action]:
        actions = self._retire(now)
        if self.phase is Phase.RUNNING:
            actions += self._change_membership(now)
        if self.phase is not Phase.RUNNING:
            return actions
        if self._is_short and now - self._short_since >= self.plan.join_timeout_s:
            left = sum(agent in self.nodes.agents for agent in self.nodes.active)
            reason = f"{left} of {self.plan.min_nodes} hosts are left, and none came in their place"
            return actions + self._fail(f"{reason} within {self.plan.join_timeout_s:g} s", now)
        if self._posts.all_succeeded() and self._is_complete:
            self._begin_to_end(now)
            return actions
        actions += self._stop(self.remote_master.nodes_to_stop(now), signal.SIGTERM)
        actions += self._master.provide(self.generation, now)
        master, nodes = self._master.address(self.generation), self.nodes
        if master is not None and len(nodes.active_agents) == len(nodes.active):  # else some are not known yet
            actions += self._placement.go_on(self.generation, master, now)
        return actions

    @property
    def _is_complete(self) -> bool:
        """Whether every host that has ranks is known, and holds its slots."""
        known = [agent.id for agent in self.nodes.active_agents]
        return known == self.nodes.active and all(self._posts.get(slot) is not None for slot in self.nodes.slots(known))

    def _go(self, change: PhaseChange) -> None:
        self.phase = advance(self.phase, change)

    def _begin_to_end(self, now: float) -> None:
        self._go(PhaseChange.END)
        self._end_by = now + self.plan.shutdown_s + LATE_S

    def _begin_to_stop(self, now: float) -> None:
        self.restarts.uses_multiworld = False
        self._go(PhaseChange.STOP)
        self._stop_by = now + self.plan.shutdown_s + LATE_S

    def _retire(self, now: float) -> list[Action]:
        """Ask the workers of hosts that leave to end."""
        done = self._posts.succeeded()
        leaving = self.nodes.leaving(done) - done
        if leaving and self.restarts.are_of_all:
            return self._stop_all(now)
        retired = [each for agent in self.nodes.active if agent in leaving for each in self._posts.alive_on(agent)]
        return self._stop(retired, signal.SIGTERM)

    def _release(self) -> list[Action]:
        """Let go of drained hosts that have nothing to do any more."""
        if not self.nodes.draining or self.phase in (Phase.RESUMING, Phase.ENDING, Phase.OVER):
            return []
        busy = self._posts.busy()
        if self.phase is Phase.RUNNING:
            busy |= set(self.nodes.active) - self._posts.succeeded()
        actions: list[Action] = []
        for info in self.nodes.release(busy):
            text = f"host {info.hostname} ({info.host}:{info.port}) has been drained, and leaves the job"
            actions += [Record(kind="drained", text=text, fields={"agent": info.id}), Release(agent=info.id)]
        return actions

    def _change_membership(self, now: float) -> list[Action]:
        """Let go of hosts that are lost, and take in those that wait, if the policy allows it while workers run."""
        change = self.nodes.change(self._posts.succeeded(), self._posts.busy())
        if change is None:
            return []
        newly = [slot for agent in change.vacant for slot in self._posts.drop(agent)]
        self.restarts.forget(newly)
        if self.restarts.are_of_all:
            if change.coming and not change.vacant and not self._posts.has_begun():  # nothing runs: they are in time
                return self._admit(change)
            return self._stop_all(now)
        if len(change.staying) + len(change.coming) >= self.plan.min_nodes:
            return self._admit(change)
        if not newly and self._is_short:  # we wait already
            return []
        if not self._is_short:
            self._is_short, self._short_since = True, now
        text = f"{len(change.staying)} hosts are left of at least {self.plan.min_nodes}: waiting for others"
        return [Record(kind="waiting", text=text)]

    def _admit(self, change: NodeChange) -> list[Action]:
        self._is_short = False
        for slot in self.nodes.slots(self.nodes.admit(change)):
            self._posts.put(slot, Post())
        return self._next_generation()

    def _stop_all(self, now: float) -> list[Action]:
        """Everything is started again together, with the hosts that are there then."""
        self._begin_to_stop(now)
        return self._stop(self._posts.alive(), signal.SIGTERM)

    def _wait_for_stop(self, now: float) -> list[Action]:
        self._posts.drop_lost(self.nodes.agents)
        if self._posts.any_alive() and now < self._stop_by:
            return []
        actions: list[Action] = []
        for agent in self._posts.busy():
            info = self.nodes.agents.pop(agent)
            text = f"host {info.hostname} ({info.host}:{info.port}) cannot end its workers, and is given up"
            actions += [Record(kind="stuck", text=text, fields={"agent": agent}), Reset(agent=agent)]
        self._go(PhaseChange.STOPPED)
        self._short_since = now
        return actions

    def _wait_for_end(self, now: float) -> list[Action]:
        self._posts.drop_lost(self.nodes.agents)
        if self._posts.any_alive() and now < self._end_by:
            return []
        self._go(PhaseChange.ENDED)
        self.outcome = self.ending.outcome(all_succeeded=self._posts.all_succeeded())
        return [Record(kind="end", text=self.outcome.text), End(outcome=self.outcome)]

    # ---- workers

    def _stop(self, workers: Iterable[tuple[Slot, Post]], signum: int, *, forced: bool = False) -> list[Action]:
        stop = Stop(workers=(), signum=int(signum), grace_s=self.plan.shutdown_s, quiet=self.ending.signum is None)
        return [*self._posts.stop(workers, stop, forced=forced)]

    def _stop_again(self, agent_id: str) -> list[Action]:
        """Repeat the orders to stop of one host's workers: it may not have got them."""
        stopping = [each for each in self._posts.alive_on(agent_id) if each[1].state is PostState.STOPPING]
        return self._stop(stopping, self.ending.signum or signal.SIGTERM, forced=True)

    def _take_over(self, slot: Slot, report: WorkerReport, now: float, age_s: float) -> None:
        self.generation = max(self.generation, report.assignment.generation)  # the roster may be older
        self.restarts.uses_multiworld |= report.uses_multiworld
        self._posts.put(slot, Post.of_report(report, now, age_s))
        self.restarts.take_over(slot, [now - age for age in report.restart_ages_s])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _lost(agent: AgentInfo, cause: str) -> Record:
    text = f"agent {agent.hostname} ({agent.host}:{agent.port}) is lost: {cause}"
    fields: dict[str, Json] = {"agent": agent.id, "hostname": agent.hostname, "pid": agent.pid, "cause": cause}
    return Record(kind="agent lost", text=text, fields=fields)

"""Agents of one job in one process: their links, succession and decisions are real, their workers are entries."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from multiworld.elastic.agent.agent import Agent
from multiworld.elastic.agent.clock import now_us
from multiworld.elastic.job.actions import (
    Exited,
    Greeted,
    HostReport,
    Master,
    MasterOpened,
    OpenMaster,
    Order,
    Outcome,
    Reassign,
    Report,
    Start,
    Stop,
    WorkerReport,
)
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.failure import FailureCause, WorkerFailure
from multiworld.elastic.job.job import JobPlan, Phase
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.leadership.election import Role
from multiworld.elastic.leadership.leadership import Leadership
from multiworld.elastic.leadership.links import AgentLinks
from multiworld.elastic.rendezvous.embedded import EmbeddedRendezvous
from multiworld.elastic.rendezvous.endpoint import Endpoint
from multiworld.wire.progress import ProgressThread
from multiworld.world.liveness import LivenessPolicy

LEASE_S = 0.6
HANG_S = LivenessPolicy().hang_s
NUM_WORKERS = 2
CLOSE_S = 5.0


@dataclass
class Entry:
    """A worker that does nothing."""

    id: str
    assignment: Assignment
    returncode: int | None = None
    ordered: bool = False


class EntryAgent:
    """What ``elastic.agent.Agent`` is to the leadership. Progress thread only."""

    def __init__(self, loop: ProgressThread, report: Callable[[Report], None]) -> None:
        self._loop, self._report = loop, report
        self._ports = itertools.count(1)
        self.entries: dict[int, Entry] = {}  # by local rank
        self._master: Master | None = None
        self.twice: list[str] = []
        """What must not be: a worker that was started while another ran in its slot."""

    def obey(self, order: Order) -> None:
        if isinstance(order, Start):
            assignment = order.assignment
            before = self.entries.get(assignment.local_rank)
            if before is not None and before.returncode is None:
                self.twice.append(f"{order.worker} beside {before.id}")
            self.entries[assignment.local_rank] = Entry(order.worker, assignment)
            self._report(Greeted(worker=order.worker))
        elif isinstance(order, Reassign):
            for entry in self.entries.values():
                if entry.id == order.worker:
                    entry.assignment = order.assignment
        elif isinstance(order, Stop):
            for worker in order.workers:
                self._loop.call_later(0.01, partial(self.exit, worker, -15, ordered=True))
        elif isinstance(order, OpenMaster):
            self._master = Master(order.generation, "127.0.0.1", next(self._ports))
            generation, address, port = self._master
            self._report(MasterOpened(generation=generation, address=address, port=port))

    def exit(self, worker: str, returncode: int, *, ordered: bool = False) -> None:
        for entry in self.entries.values():
            if entry.id == worker and entry.returncode is None:
                entry.returncode, entry.ordered = returncode, ordered
                self._report_exit(entry)

    def _report_exit(self, entry: Entry) -> None:
        assert entry.returncode is not None
        self._report(
            Exited(
                worker=entry.id,
                returncode=entry.returncode,
                failure=_failure(entry, entry.returncode) if entry.returncode else None,
                ordered=entry.ordered,
                clock_us=now_us(),
            )
        )

    def use_store(self, url: str) -> None:
        """No world is formed here."""

    def introduction(self) -> HostReport:
        reports = [
            WorkerReport(
                worker=entry.id,
                local_rank=local_rank,
                assignment=entry.assignment,
                succeeded=entry.returncode == 0,
                uses_multiworld=True,
                worlds=(),
                restart_ages_s=(),
                ended=entry.returncode is not None,
            )
            for local_rank, entry in self.entries.items()
        ]
        return HostReport(workers=tuple(reports), master=self._master)

    def repeat(self) -> None:
        for entry in list(self.entries.values()):
            if entry.returncode is not None:
                self._report_exit(entry)

    def fence(self, then: Callable[[], None], *, forgets: bool = False) -> None:
        kept = {} if forgets else {rank: each for rank, each in self.entries.items() if each.returncode == 0}
        self.entries = kept
        self._loop.call_soon(then)

    @property
    def running(self) -> list[str]:
        return [entry.id for entry in self.entries.values() if entry.returncode is None]

    @property
    def pids(self) -> dict[str, int]:
        return {}  # its workers are no processes

    @property
    def num_running(self) -> int:
        return sum(entry.returncode is None for entry in self.entries.values())


def _failure(entry: Entry, returncode: int) -> WorkerFailure:
    assignment = entry.assignment
    return WorkerFailure(
        rank=assignment.rank,
        local_rank=assignment.local_rank,
        node_rank=assignment.node_rank,
        role="default",
        hostname="here",
        pid=os.getpid(),
        generation=assignment.generation,
        returncode=returncode,
        at_us=now_us(),
        cause=FailureCause.SIGNAL,
        text="simulated",
    )


class SimulatedAgent:
    """One host of the job."""

    def __init__(self, port: int, plan: JobPlan, *, hang_s: float = HANG_S) -> None:
        self.id = secrets.token_hex(4)
        self.outcome: Outcome | None = None
        self.is_dead = False
        self.loop = ProgressThread(f"agent-{self.id}")
        rendezvous = EmbeddedRendezvous([Endpoint(host="127.0.0.1", port=port, is_here=True, named="the endpoint")])
        self.leadership = Leadership(
            self.loop,
            plan,
            token=b"secret",
            lease_s=LEASE_S,
            digest={},
            rendezvous=rendezvous,
            on_over=self._ended,
        )
        # all are one process, which runs: so whoever says nothing is given up for that
        policy = LivenessPolicy(lease_s=LEASE_S, hang_s=hang_s)
        self.links = AgentLinks(self.loop, self.leadership, policy, b"secret", "simulated", self.id)
        self.agent = EntryAgent(self.loop, self.leadership.report)
        self.loop.call_soon(self._begin)

    def __repr__(self) -> str:
        return f"<{self.id} {self.leadership.role.value}>"

    @property
    def running(self) -> list[Entry]:
        return [entry for entry in list(self.agent.entries.values()) if entry.returncode is None]

    def fail_one(self) -> None:
        """Let its first worker be killed."""

        def fail() -> None:
            for entry in self.running[:1]:
                self.agent.exit(entry.id, -9)

        self.loop.call_soon(fail)

    def pause(self, seconds: float) -> None:
        """Let it do nothing for a while, as if it was stopped; returns at once."""
        self.loop.call_soon(partial(time.sleep, seconds))

    def finish(self) -> None:
        """Let all its workers end well."""

        def finish() -> None:
            for entry in self.running:
                self.agent.exit(entry.id, 0)

        self.loop.call_soon(finish)

    def kill(self) -> None:
        """Let it die with all that it runs, as far as the others can see."""
        self._close(self.links.abort)

    def close(self) -> None:
        self._close(self.links.close)

    def _close(self, close_links: Callable[[], None]) -> None:
        closed = threading.Event()

        def close() -> None:
            self.leadership.abort()
            self.agent.entries.clear()
            close_links()
            closed.set()

        self.is_dead = True
        self.loop.call_soon(close)
        assert closed.wait(CLOSE_S)
        self.loop.stop()

    def _begin(self) -> None:
        port = self.links.listen("127.0.0.1", 0)
        info = AgentInfo(
            id=self.id,
            host="127.0.0.1",
            port=port,
            hostname=self.id,
            pid=os.getpid(),
            num_workers=NUM_WORKERS,
            role="default",
        )
        self.leadership.begin(self.links, cast(Agent, self.agent), info)

    def _ended(self, outcome: Outcome) -> None:
        self.outcome = outcome


def disorder(agents: list[SimulatedAgent], plan: JobPlan) -> str | None:
    """Return what is not as it should be once everything has settled, or None."""
    alive = [agent for agent in agents if not agent.is_dead]
    leaders = [agent for agent in alive if agent.leadership.role is Role.LEADING]
    if len(leaders) != 1 or any(agent.leadership.role is Role.SEARCHING for agent in alive):
        return f"no single leader: {alive}"
    coordinator = leaders[0].leadership.coordinator
    if coordinator is None or coordinator.job.phase is not Phase.RUNNING:
        return f"the job is not running: {alive}"
    if {info.id for info in coordinator.job.agents} != {agent.id for agent in alive}:
        return f"the job has {coordinator.job.agents}, and there are {alive}"
    places = [entry.assignment for agent in alive for entry in agent.running]
    wanted = NUM_WORKERS * min(len(alive), plan.max_nodes)
    if sorted(place.rank for place in places) != list(range(wanted)):
        return f"ranks {sorted(place.rank for place in places)} of {wanted} run"
    if len({(place.generation, place.master_port, place.world_size) for place in places}) != 1:
        return f"workers of different memberships run: {places}"
    return None

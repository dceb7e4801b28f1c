"""An agent that was away does not begin a job anew that has ended without it; one that was not goes on alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.elastic.job import free_port
from multiworld.elastic.agent import local_worker
from multiworld.elastic.agent.absence import Absence
from multiworld.elastic.agent.local_worker import LocalWorker
from multiworld.elastic.job.failure import FailureCause
from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.job.roster import Roster, RosterEntry
from multiworld.elastic.leadership.election import Role, may_have_gone_on
from multiworld.elastic.logs.pump import WorkerStreams
from multiworld.process.child import WorkerProcess
from multiworld.testing.deadlines import wait_until
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread
from tests.unit.elastic.agent.test_environment import PLACE
from tests.unit.elastic.simulated_agents import HANG_S, LEASE_S, SimulatedAgent, disorder

SETTLE_S = 15.0
GIVEN_UP_S = 2 * LEASE_S  # with a margin for a machine that is busy
AWAY_S = GIVEN_UP_S + 3.3


def roster(members: str, coordinator: str) -> Roster:
    entries = tuple(RosterEntry(id=member, host="127.0.0.1", port=1) for member in members)
    return Roster(term=1, coordinator=coordinator, generation=1, store="", members=entries, active=tuple(members))


@pytest.mark.parametrize(
    ("members", "coordinator", "gone", "before", "may"),
    [
        ("ac", "a", "a", "", True),  # the coordinator decides between two halves
        ("ac", "a", "c", "", False),
        ("abc", "a", "ab", "", True),
        ("abc", "c", "ab", "", True),
        ("abc", "a", "b", "", False),  # one of three cannot go on alone
        ("abc", "a", "ab", "a", False),  # nor of the two that were left when the others went away
        ("abc", "a", "", "", False),
        ("abcde", "a", "abc", "", True),
        ("abcde", "a", "bc", "", False),
    ],
)
def test_most_of_those_that_lived_may_have_gone_on(
    members: str, coordinator: str, gone: str, before: str, may: bool
) -> None:
    assert may_have_gone_on(roster(members, coordinator), set(gone), before=set(before)) is may


def test_an_absence_is_a_gap_between_two_looks_that_is_longer_than_the_lease() -> None:
    absence = Absence(lease_s=2.0, now=10.0)
    assert absence.every_s == 0.25
    assert absence.looked(11.0) == 0.0
    assert absence.looked(13.0) == 0.0
    assert absence.looked(15.5) == 2.5
    assert absence.looked(16.0) == 0.0


class Agents(list[SimulatedAgent]):
    """Agents of a job that goes on with any number of hosts, in the order in which they came."""

    def __init__(self, number: int, *, hang_s: float = GIVEN_UP_S) -> None:
        self.plan = JobPlan(
            min_nodes=1,
            max_nodes=number,
            policy=RestartPolicy.ALL,
            budget=RestartBudget(max_restarts=1_000_000),
            last_call_s=0.2,
            resume_s=LEASE_S + 1.0,
        )
        port = free_port()
        for _ in range(number):
            self.append(SimulatedAgent(port, self.plan, hang_s=hang_s))
            self.settle()

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self:
            if not agent.is_dead:
                agent.close()

    def settle(self) -> None:
        self.wait(lambda: disorder(self, self.plan) is None)

    def wait(self, condition: Callable[[], bool]) -> None:
        assert wait_until(condition, SETTLE_S), disorder(self, self.plan)


@pytest.mark.parametrize("away", [0, 2])
def test_who_was_away_when_the_job_ended_does_not_begin_it_anew(away: int) -> None:
    with Agents(3) as agents:
        lost, others = agents[away], [agent for agent in agents if agent is not agents[away]]
        lost.pause(AWAY_S)
        agents.wait(lambda: disorder(others, agents.plan) is None)  # they go on without it
        started = dict(lost.agent.entries)
        for agent in others:
            agent.finish()
        agents.wait(lambda: all(agent.outcome is not None for agent in others))
        assert [agent.outcome and agent.outcome.status for agent in others] == [0, 0]
        for agent in others:
            agent.close()
        agents.wait(lambda: lost.outcome is not None)
        assert lost.outcome is not None
        assert lost.outcome.status == 1
        assert "either the job has ended without it" in lost.outcome.text
        assert [entry for entry in lost.agent.entries.values() if entry not in started.values()] == []


def test_who_was_not_away_goes_on_alone_when_all_others_die() -> None:
    with Agents(3) as agents:
        for agent in agents[:2]:
            agent.kill()
        agents.settle()
        assert agents[2].leadership.role is Role.LEADING


def test_a_coordinator_that_was_away_comes_back_to_the_others_as_one_of_them() -> None:
    with Agents(3) as agents:
        agents[0].pause(AWAY_S)
        agents.wait(lambda: disorder(agents[1:], agents.plan) is None)
        agents.settle()
        assert agents[0].leadership.role is Role.FOLLOWING
        assert [agent.agent.twice for agent in agents] == [[], [], []]


def test_who_was_busy_for_a_while_and_was_given_up_by_nobody_goes_on_alone_later() -> None:
    with Agents(2, hang_s=HANG_S) as agents:
        busy = agents[1]
        busy.pause(2 * LEASE_S)
        agents.wait(lambda: busy.leadership.is_stale)
        agents.wait(lambda: not busy.leadership.is_stale)
        agents[0].kill()
        agents.settle()
        assert busy.leadership.role is Role.LEADING


def test_a_coordinator_that_was_busy_while_one_of_many_died_stays_the_coordinator() -> None:
    with Agents(4, hang_s=HANG_S) as agents:
        agents[0].pause(2 * LEASE_S)
        agents[2].kill()
        agents.settle()
        coordinator = agents[0].leadership.coordinator
        assert coordinator is not None
        assert coordinator.term == 1


@pytest.mark.parametrize(("away_s", "verdict"), [(0.0, FailureCause.HUNG), (61.0, None)], ids=["was there", "was away"])
def test_a_worker_is_not_hung_for_what_it_said_while_its_agent_was_away(
    away_s: float, verdict: FailureCause | None
) -> None:
    loop = ProgressThread("test-held")
    sleeping = subprocess.Popen(["sleep", "60"])
    try:
        held = LocalWorker(loop, "worker", PLACE, on_exit=lambda _: None, agent_was_away=lambda: away_s)
        process = SimpleNamespace(pid=sleeping.pid, returncode=None, kill=sleeping.kill, dump_stacks=lambda: False)
        held.process = cast(WorkerProcess, process)
        held.progressed_at = 100.0
        held.forgive(away_s, 161.0)
        held.look(161.0, lease_s=2.0, progress_s=60.0)
        assert (held.verdict and held.verdict[0]) == verdict
    finally:
        sleeping.kill()
        sleeping.wait()
        loop.stop()


@pytest.mark.parametrize("away_s", [0.0, 61.0], ids=["was there", "was away"])
def test_a_worker_that_sleeps_in_the_kernel_and_cannot_be_killed_is_left_behind_in_the_end(
    away_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_worker, "UNKILLABLE_S", 0.01)
    monkeypatch.setattr(local_worker, "is_uninterruptible", lambda pid, start_time: True)
    loop = ProgressThread("test-held")
    ended: list[LocalWorker] = []
    drained: Operation[None] = Operation()
    try:
        held = LocalWorker(loop, "worker", PLACE, on_exit=ended.append, agent_was_away=lambda: 0.0)
        process = SimpleNamespace(pid=os.getpid(), returncode=None, kill=lambda: None)
        streams = SimpleNamespace(drained=drained, close_after=lambda grace_s: drained.succeed(None))
        held.process, held.streams = cast(WorkerProcess, process), cast(WorkerStreams, streams)
        for now in (100.0, 161.0):
            held.forgive(away_s if now > 100.0 else 0.0, now)
            held.look(now, lease_s=2.0, progress_s=None, uninterruptible_s=60.0)
        if away_s:
            assert held.verdict is None
            return
        assert held.verdict == (FailureCause.UNINTERRUPTIBLE, "for 61.0 s")
        assert wait_until(lambda: bool(ended), 5)
        held.exited(-9)  # in the end the kernel has let it go
        assert [each.returncode for each in ended] == [-9]
    finally:
        loop.stop()

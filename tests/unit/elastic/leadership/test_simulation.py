"""Agents die, come and lose workers in random order: in the end one of them coordinates, and every rank runs once."""

from __future__ import annotations

import random
import time

import pytest

from benchmarks.elastic.job import free_port
from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.leadership.election import Role
from multiworld.testing.deadlines import wait_until
from tests.unit.elastic.simulated_agents import LEASE_S, SimulatedAgent, disorder

NUM_ROUNDS = 5
MAX_AGENTS = 5
SETTLE_S = 15.0


def let_something_happen(agents: list[SimulatedAgent], port: int, plan: JobPlan, rng: random.Random) -> str:
    alive = [agent for agent in agents if not agent.is_dead]
    kind = rng.choice(["kill", "kill", "kill the leader", "fail", "come", "come"])
    if kind.startswith("kill") and len(alive) > 1:
        leaders = [agent for agent in alive if agent.leadership.role is Role.LEADING]
        victim = rng.choice(leaders if kind == "kill the leader" and leaders else alive)
        victim.kill()
        kind += f" ({victim.id})"
    elif kind == "come" and len(alive) < MAX_AGENTS:
        agents.append(SimulatedAgent(port, plan))
        kind += f" ({agents[-1].id})"
    elif kind == "fail":
        rng.choice(alive).fail_one()
    time.sleep(rng.choice([0, 0, 0.01, 0.05, 0.3]))  # so that things happen amid others
    return kind


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(6))
def test_one_coordinates_and_every_rank_runs_once_whatever_happened(seed: int) -> None:
    rng = random.Random(seed)
    plan = JobPlan(
        min_nodes=1,
        max_nodes=rng.choice([2, 3]),
        policy=rng.choice([RestartPolicy.WORKER, RestartPolicy.ALL]),
        budget=RestartBudget(max_restarts=1_000_000),
        join_timeout_s=60.0,
        last_call_s=0.2,
        shutdown_s=2.0,
        resume_s=LEASE_S + 1.0,
    )
    port = free_port()
    agents = [SimulatedAgent(port, plan) for _ in range(rng.randint(2, 4))]
    history: list[str] = []
    try:
        for _ in range(NUM_ROUNDS):
            settled = wait_until(lambda: disorder(agents, plan) is None, SETTLE_S)
            assert settled, f"seed {seed}, after {history}: {disorder(agents, plan)}"
            history += [let_something_happen(agents, port, plan, rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        assert [agent.agent.twice for agent in agents] == [[]] * len(agents)
    finally:
        for agent in agents:
            if not agent.is_dead:
                agent.close()


def test_workers_that_ended_well_before_their_coordinator_died_are_not_missed() -> None:
    plan = JobPlan(min_nodes=2, max_nodes=2, policy=RestartPolicy.ALL, last_call_s=0.2, resume_s=LEASE_S + 1.0)
    port = free_port()
    agents = [SimulatedAgent(port, plan) for _ in range(2)]
    try:
        assert wait_until(lambda: disorder(agents, plan) is None, SETTLE_S)
        [first] = [agent for agent in agents if agent.leadership.role is Role.LEADING]
        [second] = [agent for agent in agents if agent is not first]
        before = [entry.id for entry in second.running]
        coordinator = first.leadership.coordinator
        assert coordinator is not None
        first.finish()
        assert wait_until(lambda: coordinator.job.finished == [first.id], SETTLE_S)
        first.kill()
        assert wait_until(lambda: second.leadership.role is Role.LEADING, SETTLE_S)
        second.finish()
        assert wait_until(lambda: second.outcome is not None, SETTLE_S)
        assert second.outcome is not None
        assert second.outcome.status == 0
        assert [entry.id for entry in second.agent.entries.values()] == before
    finally:
        for agent in agents:
            if not agent.is_dead:
                agent.close()

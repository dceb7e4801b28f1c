"""Coordinators die one after the other, and the next one knows what has happened in the job since it began."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.elastic.job import free_port
from multiworld.elastic.job.history import Event
from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.leadership.election import Role
from multiworld.testing.deadlines import wait_until
from tests.unit.elastic.simulated_agents import LEASE_S, SimulatedAgent, disorder

WAIT_S = 15.0


def leader(agents: list[SimulatedAgent]) -> SimulatedAgent:
    (found,) = [each for each in agents if not each.is_dead and each.leadership.role is Role.LEADING]
    return found


def events(agent: SimulatedAgent) -> list[Event]:
    coordinator = agent.leadership.coordinator
    return [] if coordinator is None else coordinator.events.history.since(0)


def test_the_events_of_a_job_survive_its_coordinators() -> None:
    plan = JobPlan(
        min_nodes=1,
        max_nodes=3,
        policy=RestartPolicy.WORKER,
        budget=RestartBudget(max_restarts=1000),
        join_timeout_s=60.0,
        last_call_s=0.1,
        shutdown_s=2.0,
        resume_s=LEASE_S + 1.0,
    )
    port = free_port()
    agents = [SimulatedAgent(port, plan) for _ in range(3)]

    def settle() -> None:
        assert wait_until(lambda: disorder(agents, plan) is None, WAIT_S), disorder(agents, plan)

    def await_kinds(*kinds: str) -> Callable[[], bool]:
        return lambda: [kind for each in events(leader(agents)) if (kind := each.kind) in kinds] == list(kinds)

    try:
        settle()
        leader(agents).fail_one()
        assert wait_until(await_kinds("worker failed"), WAIT_S)
        before = events(leader(agents))
        leader(agents).kill()
        settle()
        second = events(leader(agents))
        assert second[: len(before)] == before
        agents.append(SimulatedAgent(port, plan))  # its copy is what it was told after it came
        settle()
        leader(agents).kill()
        settle()
        third = events(leader(agents))
        assert third[: len(second)] == second
        assert [each.number for each in third] == list(range(1, len(third) + 1))
        takeovers = [each for each in third if each.kind == "takeover"]
        assert [each.term for each in takeovers] == [2, 3]
        assert all(each.text.endswith(f"(term {each.term})") for each in takeovers), "nothing may be missing"
    finally:
        for agent in agents:
            if not agent.is_dead:
                agent.close()

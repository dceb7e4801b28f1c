"""The role of an agent: what may follow what."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from benchmarks.elastic.job import free_port
from multiworld.elastic.job.actions import Runs
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.leadership.election import Role, RoleChange, advance
from multiworld.testing.deadlines import wait_until
from multiworld.wire.transitions import InvalidTransitionError
from tests.unit.elastic.simulated_agents import LEASE_S, SimulatedAgent, disorder

SETTLE_S = 15.0


def test_an_agent_finds_a_coordinator_or_is_one_until_it_ends() -> None:
    assert advance(Role.SEARCHING, RoleChange.WELCOMED) is Role.FOLLOWING
    assert advance(Role.FOLLOWING, RoleChange.LOST) is Role.SEARCHING
    assert advance(Role.SEARCHING, RoleChange.ELECTED) is Role.LEADING
    assert advance(Role.LEADING, RoleChange.STEPPED_DOWN) is Role.SEARCHING


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.OVER])
def test_an_agent_may_end_in_every_role(role: Role) -> None:
    assert advance(role, RoleChange.ENDED) is Role.OVER


@pytest.mark.parametrize("change", list(RoleChange))
def test_an_agent_that_is_over_stays_so(change: RoleChange) -> None:
    with pytest.raises(InvalidTransitionError):
        advance(Role.OVER, change)


def test_nobody_leads_who_follows() -> None:
    with pytest.raises(InvalidTransitionError, match="an agent that is following cannot change by 'elected'") as caught:
        advance(Role.FOLLOWING, RoleChange.ELECTED)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.state, again.change) == (Role.FOLLOWING, RoleChange.ELECTED)


def test_a_coordinator_that_is_over_does_not_search_when_it_was_away_and_all_have_gone() -> None:
    plan, port = JobPlan(min_nodes=1, max_nodes=3, last_call_s=0.2), free_port()
    agents: list[SimulatedAgent] = []
    for _ in range(3):
        agents.append(SimulatedAgent(port, plan))
        assert wait_until(lambda: disorder(agents, plan) is None, SETTLE_S)
    first = agents[0]
    looked = threading.Event()

    def end_and_be_away() -> None:
        first.leadership.abort()  # its followers are gone with that
        time.sleep(2 * LEASE_S)  # the subject: this agent is away
        first.leadership.report(Runs(workers=()))
        looked.set()

    first.loop.call_soon(end_and_be_away)
    assert looked.wait(SETTLE_S)
    assert first.leadership.role is Role.OVER
    assert first.leadership.coordinator is not None  # it did not step down either
    for agent in agents:
        agent.close()

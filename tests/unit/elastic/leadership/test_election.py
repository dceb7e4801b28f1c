"""The role of an agent: what may follow what."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

import multiworld as mw
from benchmarks.elastic.job import free_port
from multiworld.elastic.job.actions import Runs
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.leadership.election import Role, RoleChange, advance, hosts_out
from multiworld.testing.deadlines import wait_until
from multiworld.wire.messages import decode
from multiworld.wire.progress.waiting import wait_blocking
from multiworld.wire.transitions import InvalidTransitionError
from multiworld.world.launcher.hosts_out import KEY, HostsOut
from tests.unit.elastic.simulated_agents import LEASE_S, SimulatedAgent, disorder

SETTLE_S = 15.0
HOSTS = {"a": "host a", "b": "host b", "c": "host c", "d": "host d"}


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


def out_of(linked: str, *, heard: str = "", leaving: str = "", elders: str = "abcd") -> frozenset[str] | None:
    return hosts_out(
        set(HOSTS.values()),
        host_of={each: HOSTS[each] for each in linked},
        electorates=["abcd", elders],
        heard=set(heard or linked),
        leaving=set(leaving),
    )


def test_the_hosts_of_agents_that_are_not_linked_are_out_where_half_of_them_are_left() -> None:
    assert out_of("abcd") == frozenset()
    assert out_of("abc") == frozenset({"host d"})
    assert out_of("ab") == frozenset({"host c", "host d"})
    assert out_of("a") is None


def test_an_agent_that_was_not_heard_just_now_may_be_lost_a_moment_later() -> None:
    """Of a cut that three of four are behind, the first one is lost before the others."""
    assert out_of("abc", heard="a") is None
    assert out_of("abc", heard="ab") == frozenset({"host d"})


def test_who_has_come_of_late_is_no_majority_of_those_before() -> None:
    assert out_of("ad", elders="abc") is None


def test_nobody_is_out_while_one_that_lives_has_given_us_up() -> None:
    assert out_of("abc", leaving="d") is None


def test_a_host_with_another_agent_that_is_linked_is_not_out() -> None:
    found = hosts_out({"h"}, host_of={"a": "h"}, electorates=["ab"], heard={"a"}, leaving=set())
    assert found == frozenset()


def test_the_store_says_which_hosts_are_out_until_their_agents_are_back() -> None:
    plan, port = JobPlan(min_nodes=1, max_nodes=3, last_call_s=0.2), free_port()
    agents: list[SimulatedAgent] = []
    for _ in range(3):
        agents.append(SimulatedAgent(port, plan, hang_s=LEASE_S))
        assert wait_until(lambda: disorder(agents, plan) is None, SETTLE_S)
    coordinator = agents[0].leadership.coordinator
    assert coordinator is not None
    with mw.WorldManager(token="secret") as manager:
        store = wait_blocking(manager.start_store_client(coordinator.roster.store, SETTLE_S))

        def said() -> tuple[str, ...]:
            record = wait_blocking(store.get(KEY))
            return () if record is None else decode(HostsOut, record).hosts

        assert said() == ()
        agents[2].pause(3 * LEASE_S)
        assert wait_until(lambda: said() == (agents[2].host_id,), SETTLE_S)
        assert wait_until(lambda: said() == (), SETTLE_S)
        store.close()
    for agent in agents:
        agent.close()


def test_a_new_coordinator_says_that_the_host_of_the_one_before_is_out() -> None:
    plan, port = JobPlan(min_nodes=1, max_nodes=3, last_call_s=0.2), free_port()
    agents: list[SimulatedAgent] = []
    for _ in range(3):
        agents.append(SimulatedAgent(port, plan))
        assert wait_until(lambda: disorder(agents, plan) is None, SETTLE_S)
    lost = agents.pop(0)
    lost.kill()
    assert wait_until(lambda: disorder(agents, plan) is None, SETTLE_S)
    coordinator = next(each for agent in agents if (each := agent.leadership.coordinator) is not None)
    with mw.WorldManager(token="secret") as manager:
        store = wait_blocking(manager.start_store_client(coordinator.roster.store, SETTLE_S))
        record = wait_blocking(store.get(KEY))
        assert record is not None
        assert decode(HostsOut, record).hosts == (lost.host_id,)
        store.close()
    for agent in agents:
        agent.close()

"""When the nodes of remote tensors end with their master, and are started again with it."""

from __future__ import annotations

import signal

import pytest

from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.remote import NODES_END_S
from multiworld.world.launcher.remote_nodes import RemoteNodes
from tests.unit.world.launcher.test_remote_nodes import remote_node

from .test_job import Hosts, agent, hosts


def with_nodes(policy: RestartPolicy = RestartPolicy.WORKER) -> Hosts:
    """Rank 0 is the master of the nodes 1 and 2."""
    some = hosts(greets=True, policy=policy, budget=RestartBudget(max_restarts=3))
    some.attach(agent("a", num_workers=3))
    tell(some)
    return some


def tell(some: Hosts, *lost: int, ended: bool = False) -> None:
    """The master says how its nodes stand."""
    some.carry_out(some.job.remote_told(news(*lost, ended=ended), some.now))


def news(*lost: int, ended: bool = False) -> RemoteNodes:
    nodes = tuple(remote_node(number, "it has not come yet" if number in lost else "") for number in (1, 2))
    return RemoteNodes(rank=0, syncs=0, nodes=nodes, ended=ended)


def test_nodes_that_ended_well_are_started_again_with_their_master() -> None:
    some = with_nodes()
    some.fail(1, 0)
    stays = some.at(2)
    some.fail(0, 3)
    assert sorted(some.ranks) == [0, 1, 2]
    assert stays in some.running
    assert [place.restarts for place in some.places] == [1, 0, 0]


def test_a_released_node_that_ends_after_the_next_master_has_started_is_started_again() -> None:
    some = with_nodes()
    tell(some, ended=True)
    some.fail(0, 3)
    tell(some, 1, 2)
    some.fail(1, 0)
    assert sorted(some.ranks) == [0, 2]  # the master may be about to end, too
    tell(some, 1, 2)
    assert sorted(some.ranks) == [0, 1, 2]
    assert [place.restarts for place in some.places] == [1, 0, 0]


def test_nodes_are_started_again_for_the_second_connection_of_one_master() -> None:
    some = with_nodes()
    tell(some, ended=True)
    some.fail(1, 0)
    some.fail(2, 0)
    assert sorted(some.ranks) == [0]
    tell(some, 1, 2)
    assert sorted(some.ranks) == [0, 1, 2]
    assert [place.restarts for place in some.places] == [0, 0, 0]


def test_a_node_that_ends_well_while_its_master_needs_it_has_failed() -> None:
    some = with_nodes()
    some.fail(1, 0)
    tell(some)
    assert sorted(some.ranks) == [0, 2]  # it was not missed yet
    tell(some, 1)
    assert sorted(some.ranks) == [0, 1, 2]
    assert [place.restarts for place in some.places] == [0, 1, 0]
    assert "worker failed" in some.records


def test_a_node_that_ends_well_again_and_again_ends_the_job() -> None:
    some = with_nodes()
    for _ in range(4):
        some.fail(1, 0)
        tell(some, 1)
        some.pass_time(60.0)
    assert some.outcome is not None
    assert some.outcome.status == 1
    assert "--max-restarts" in some.outcome.text


@pytest.mark.parametrize("has_ended", [True, False])
def test_no_node_is_started_again_for_a_master_that_is_done(has_ended: bool) -> None:
    some = with_nodes()
    if not has_ended:
        some.fail(0, 0)
    some.fail(1, 0)
    tell(some, 1, ended=has_ended)
    assert 1 not in some.ranks


def test_other_workers_that_ended_well_are_not_started_again() -> None:
    some = hosts(greets=True, policy=RestartPolicy.WORKER, budget=RestartBudget(max_restarts=3))
    some.attach(agent("a", num_workers=3))
    some.fail(1, 0)
    some.fail(0, 3)
    assert sorted(some.ranks) == [0, 2]


@pytest.mark.parametrize("policy", [RestartPolicy.WORKER, RestartPolicy.ALL])
def test_nodes_that_stay_after_their_master_ended_well_are_stopped_and_the_job_ends_well(policy: RestartPolicy) -> None:
    some = with_nodes(policy)
    some.fail(0, 0)
    assert sorted(some.ranks) == [1, 2]
    assert some.job.next_deadline() == NODES_END_S
    some.fail(1, 0)
    some.pass_time(NODES_END_S)
    assert len(some.stopped) == 1
    assert some.outcome is not None
    assert some.outcome.status == 0


def test_a_node_that_waits_to_be_started_again_is_done_with_its_master() -> None:
    some = with_nodes()
    for _ in range(2):
        some.fail(1)
    assert sorted(some.ranks) == [0, 2]  # the other start of node 1 is put off
    some.fail(2, 0)
    some.fail(0, 0)
    assert some.outcome is not None
    assert some.outcome.status == 0


def test_a_node_that_fails_after_its_master_ended_well_is_told_of_and_not_started_again() -> None:
    some = with_nodes()
    some.fail(0, 0)
    some.fail(1, -signal.SIGSEGV)
    some.fail(2, 0)
    assert "worker failed" in some.records
    assert some.outcome is not None
    assert some.outcome.status == 0


def test_a_coordinator_that_took_over_hears_of_a_master_that_has_ended() -> None:
    some = hosts(greets=True, policy=RestartPolicy.WORKER)
    some.attach(agent("a", num_workers=2))
    some.fail(0, 0)
    tell(some, 1)
    some.pass_time(NODES_END_S)
    assert some.outcome is not None
    assert some.outcome.status == 0

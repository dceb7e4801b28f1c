"""What goes wrong in a training without a death: found, named, and decided alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import multiworld as mw
from multiworld.testing import Worker, WorkerGroup
from multiworld.training import BadStepError
from tests.warm_workers import Nursery

from .training_health_programs import train_with_fault
from .training_programs import train_alone

pytestmark = pytest.mark.process

EVERY = 4


@pytest.fixture(scope="module", autouse=True)
def with_program(nursery: Nursery) -> None:
    nursery.preload("tests.process.training_health_programs")


@pytest.fixture
def store() -> Iterator[str]:
    manager = mw.WorldManager()
    yield manager.serve_store("tcp://127.0.0.1:0")
    manager.close(timeout_s=0.2)


def start(
    group: WorkerGroup, store: str, total: int, fault: str, at: int, num: int = 3, wrong: int = 1, **options: Any
) -> list[Worker]:
    return [
        group.start(train_with_fault, store, rank, num, total, fault=fault if rank == wrong else "", at=at, **options)
        for rank in range(num)
    ]


def results(workers: list[Worker], timeout_s: float = 60.0) -> list[dict[str, Any]]:
    return [worker.await_event("returned", timeout_s)["value"] for worker in workers]


def test_a_flipped_bit_is_found_within_the_interval_and_its_rank_gets_the_state_anew(store: str) -> None:
    at, total = 5, 24
    with WorkerGroup() as group:
        workers = start(group, store, total, "flip", at, health={"compare_every": EVERY})
        ended = results(workers)
        for worker in workers:
            (found,) = worker.events("ReplicasDiverged")
            assert (found["name"], found["wrong"], found["removed"]) == ("layers.3.weight", [1], [1])
            assert at < found["step"] <= at + EVERY
            assert worker.events("MembershipChanged")[-1]["ranks"] == [0, 2, 1]
    assert all(each == ended[0] for each in ended)  # every bit
    assert ended[0]["step"] == total


@pytest.mark.parametrize("part", ["data", "backward"])
def test_a_rank_that_is_twice_as_slow_is_named_within_20_steps(store: str, part: str) -> None:
    with WorkerGroup() as group:
        workers = start(group, store, 22, f"slow {part}", -1, paced=True)
        results(workers)
        (found,) = workers[0].events("SlowRank")
        assert (found["slow_rank"], found["part"]) == (1, part)
        assert found["step"] < 20
        assert found["factor"] > 1.2  # 2 on a machine where nothing else runs
        assert not workers[2].events("SlowRank")  # one report


def test_a_slow_rank_is_named_where_replicas_that_compute_alone_meet(store: str) -> None:
    every, total = 11, 24  # two rounds tell of 22 steps
    with WorkerGroup() as group:
        workers = start(group, store, total, "slow forward", -1, paced=True, meet_every=every)
        results(workers)
        (found,) = workers[0].events("SlowRank")
        assert (found["slow_rank"], found["part"]) == (1, "forward")
        assert found["step"] < 2 * every
        assert found["factor"] > 1.2
        assert not workers[2].events("SlowRank")


def test_a_member_that_gets_sigterm_leaves_between_two_steps_and_nothing_is_redone(store: str) -> None:
    at, total = 4, 12
    with WorkerGroup() as group:
        workers = start(group, store, total, "term", at, leave_on=[15])
        left, *stayed = results([workers[1], workers[0], workers[2]])
        assert left["step"] == at + 1
        (asked,) = workers[1].events("LeaveAsked")
        assert (asked["step"], asked["reason"]) == (at, "it got SIGTERM")
        for worker, result in zip((workers[0], workers[2]), stayed, strict=True):
            committed = worker.events("StepCommitted")
            assert [each["step"] for each in committed] == list(range(total))
            assert sum(each["redone"] for each in committed) == 0
            final = torch.tensor(result["final"], dtype=torch.float64)
            torch.testing.assert_close(final, train_alone(total), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("action", "fault"), [("skip", "nan"), ("rollback", "nan"), ("rollback", "spike")])
def test_a_bad_step_is_handled_alike_on_all_ranks(store: str, action: str, fault: str) -> None:
    at, total = 22, 26
    with WorkerGroup() as group:
        workers = start(group, store, total, fault, at, on_bad_step=action, health={"snapshot_every": 10})
        ended = results(workers)
        for worker in workers:
            (bad,) = worker.events("BadStep")
            assert (bad["step"], bad["action"]) == (at, action)
            assert bad["back_to"] == (20 if action == "rollback" else None)
    assert all(each == ended[0] for each in ended)
    assert all(value == value for value in ended[0]["final"])


def test_a_bad_step_ends_the_training_with_the_same_error_on_all_ranks(store: str) -> None:
    with WorkerGroup() as group:
        workers = start(group, store, 9, "nan", 3, on_bad_step="raise")
        for worker in workers:
            raised = worker.await_event("raised", 30)
            assert raised["type"] == BadStepError.__name__
            assert "step 3 is bad: gradients are not finite on ranks 0, 1, 2" in raised["message"]


def test_a_rank_that_computes_something_else_the_second_time_is_named_and_done_without(store: str) -> None:
    at, total = 5, 14
    with WorkerGroup() as group:
        workers = start(group, store, total, "miscompute", at, replay=3)
        ended = results(workers)
        for worker in workers:
            (found,) = worker.events("Miscomputed")
            assert (found["step"], found["wrong_rank"], found["name"]) == (at, 1, "layers.3.weight")
            assert found["is_removed"]
    expected = train_alone(total)
    for each in ended:  # the wrong gradients have never counted
        final = torch.tensor(each["final"], dtype=torch.float64)
        torch.testing.assert_close(final, expected, rtol=1e-9, atol=1e-11)

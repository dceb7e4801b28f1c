"""Replicas are killed, stopped or wrong at the worst moments: the others go on, and the result is the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import multiworld as mw
from multiworld.testing import Worker, WorkerGroup
from tests.warm_workers import Nursery

from .training_programs import NUM_MICRO_BATCHES, train, train_alone

pytestmark = pytest.mark.process

TOTAL = 8


@pytest.fixture(scope="module", autouse=True)
def with_torch(nursery: Nursery) -> None:
    nursery.preload("torch._dynamo", "tests.process.training_programs")  # an optimizer imports the first


@pytest.fixture
def store() -> Iterator[str]:
    manager = mw.WorldManager()
    yield manager.serve_store("tcp://127.0.0.1:0")
    manager.close(timeout_s=0.2)


def check_end(workers: list[Worker], total: int = TOTAL, timeout_s: float = 30.0) -> None:
    """All of them end with the parameters that plain PyTorch gives in one process."""
    expected = train_alone(total)
    for worker in workers:
        final = torch.tensor(worker.await_event("returned", timeout_s)["value"]["final"], dtype=torch.float64)
        torch.testing.assert_close(final, expected, rtol=1e-9, atol=1e-11)


def check_shares(workers: list[Worker], steps: range) -> None:
    """Each micro-batch of these steps was computed once by those who counted them."""
    for step in steps:
        did = [
            number
            for each in workers
            for report in each.events("did")
            if report["step"] == step
            for number in report["numbers"]
        ]
        assert sorted(did) == list(range(NUM_MICRO_BATCHES)), f"step {step}: {did}"


@pytest.mark.parametrize("exact", [False, True])
def test_two_that_are_killed_at_once_are_done_without(store: str, exact: bool) -> None:
    with WorkerGroup() as group:
        ranks = [
            group.start(train, store, rank, 4, TOTAL, hold=["forward 3"] if rank in (0, 2) else [], exact=exact)
            for rank in range(4)
        ]
        killed, survivors = [ranks[0], ranks[2]], [ranks[1], ranks[3]]
        for each in killed:
            each.await_event("held", place="forward 3")
        for each in killed:
            each.kill()
        check_end(survivors)
        check_shares(survivors, range(3, TOTAL))
        assert survivors[0].events("members")[-1]["ranks"] == [1, 3]

"""Replicas are killed, stopped or wrong at the worst moments: the others go on, and the result is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import multiworld as mw
from multiworld.testing import Worker, WorkerFailedError, WorkerGroup
from multiworld.world.liveness import DEFAULT_LEASE_S
from tests.bounds import KILL_S, STOP_S
from tests.warm_workers import Nursery

from .training_programs import NUM_MICRO_BATCHES, NUM_WARM, flat, make_model, serve_store, train, train_alone

pytestmark = pytest.mark.process

TOTAL = 8


@pytest.fixture(scope="module", autouse=True)
def with_program(nursery: Nursery) -> None:
    nursery.preload("tests.process.training_programs")


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


def started(
    group: WorkerGroup, store: str, size: int, hold: dict[int, list[str]] | None = None, total: int = TOTAL, **how: Any
) -> list[Worker]:
    """Start all ranks; ``hold``: where each is held."""
    holds = hold or {}
    return [group.start(train, store, rank, size, total, hold=holds.get(rank, []), **how) for rank in range(size)]


def test_a_kill_while_the_others_recover_is_recovered_from_as_well(store: str) -> None:
    """Rank 1 has agreed on who goes on when it is killed: the world of those can't be formed."""
    with WorkerGroup() as group:
        ranks = started(group, store, 4, {0: ["backward 3"], 1: ["agree", "agree"]})
        ranks[1].await_event("held", place="agree")  # the first generation
        ranks[1].command("go on")
        ranks[0].await_event("held", place="backward 3")
        ranks[0].kill()
        ranks[1].await_event("held", place="agree")
        killed_at = ranks[1].kill()
        survivors = ranks[2:]
        check_end(survivors)
        for each in survivors:
            again = each.events("members")[-1]
            assert again["ranks"] == [2, 3]
            assert again.at - killed_at < KILL_S
        check_shares(survivors, range(3, TOTAL))


def test_a_newcomer_that_is_killed_before_it_has_the_state_harms_nobody(store: str) -> None:
    with WorkerGroup() as group:
        ranks = started(group, store, 2, every_s=0.05, ballast=1_000_000)
        ranks[1].await_event("did", step=1)
        ranks[1].kill()
        newcomer = group.start(train, store, 1, 2, TOTAL, hold=["members 2"], ballast=1_000_000)
        newcomer.await_event("held", place="members 2")
        newcomer.kill()
        check_end(ranks[:1])


def test_a_newcomer_whose_only_source_is_killed_goes_on_with_nobody(store: str) -> None:
    """Nobody has the state then: it begins anew, and alone."""
    with WorkerGroup() as group:
        ranks = started(group, store, 2, {0: ["members 2", "members 2"]}, every_s=0.05, ballast=3_000_000)
        ranks[0].await_event("held", place="members 2")
        ranks[0].command("go on")
        ranks[1].await_event("did", step=1)
        ranks[1].kill()
        newcomer = group.start(train, store, 1, 2, TOTAL, gather_s=0.5, ballast=3_000_000)
        ranks[0].await_event("held", place="members 2", timeout_s=30.0)
        ranks[0].kill()
        check_end([newcomer])
        assert newcomer.events("did")[0]["step"] == 0


def test_a_member_that_stands_still_is_done_without_and_comes_back_as_a_newcomer(store: str) -> None:
    total = 40  # rounding grows tenfold in ten steps: after 80, another order of summation is as far off as an error
    with WorkerGroup() as group:
        holds = [["forward 6"], [], ["backward 3"]]
        ranks = [group.start(train, store, rank, 3, total, hold=hold, every_s=0.1) for rank, hold in enumerate(holds)]
        ranks[2].await_event("held", place="backward 3")
        stopped_at = ranks[2].stop()
        without = ranks[0].await_event("did", step=3)
        assert without.at - stopped_at < DEFAULT_LEASE_S + 1.0 + STOP_S
        ranks[0].await_event("held", place="forward 6")
        ranks[2].cont()
        ranks[2].command("go on")
        ranks[0].command("go on")
        check_end(ranks, total)
        assert [each["ranks"] for each in ranks[0].events("members")][-1] == [0, 1, 2]


@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [
        ("forward 3", "ValueError", "bad sample in micro-batch"),
        ("load 3", "SampleError", "sample 13 of step 3"),
        ("no optimizer 3", "StepError", "step 3 ended without optimizer.step()"),
    ],
)
def test_an_error_of_the_program_on_one_rank_ends_all_with_that_error_and_the_rank(
    store: str, place: str, kind: str, message: str
) -> None:
    with WorkerGroup() as group:
        ranks = [group.start(train, store, rank, 3, TOTAL, raises=place if rank == 2 else "") for rank in range(3)]
        assert ranks[2].await_event("raised")["type"] == kind
        for other in ranks[:2]:
            raised = other.await_event("raised")
            assert raised["type"] == "PeerRaisedError"
            assert f"rank 2 in step 3: {kind}: {message}" in raised["message"]


def test_optimizer_step_outside_of_a_step_is_refused(store: str) -> None:
    with WorkerGroup() as group:
        worker = group.start(train, store, 0, 1, TOTAL, steps_outside=True)
        raised = worker.await_event("raised")
        assert raised["type"] == "StepError"
        assert "call it inside of 'with step:'" in raised["message"]


def test_ranks_with_different_models_end_with_what_differs(store: str) -> None:
    with WorkerGroup() as group:
        ranks = [group.start(train, store, rank, 2, TOTAL, hidden=8 + rank) for rank in range(2)]
        for worker in ranks:
            raised = worker.await_event("raised")
            assert raised["type"] == "SetupError"
            assert "differ in: the model" in raised["message"]


def test_a_store_that_dies_and_comes_back_is_told_who_trains(store: str) -> None:
    """The training goes on without a store, and a loss after that finds the new one."""
    with WorkerGroup() as group:
        server = group.start(serve_store, 0)
        url = server.await_event("serving")["url"]
        ranks = started(group, url, 3, {0: ["forward 26"]}, total=40, every_s=0.03)
        ranks[0].await_event("did", step=3)
        server.kill()
        server.wait()
        ranks[0].await_event("did", step=13)
        group.start(serve_store, int(url.rpartition(":")[2])).await_event("serving")
        ranks[0].await_event("held", place="forward 26")
        ranks[0].kill()
        check_end(ranks[1:], 40)
        check_shares(ranks[1:], range(26, 40))


def test_a_newcomer_waits_through_a_step_that_takes_longer_than_it_gathers(store: str) -> None:
    """Members that train do not beat; a newcomer must not take them for gone, and begin a training of its own."""
    with WorkerGroup() as group:
        ranks = started(group, store, 2, {0: ["forward 3"]})
        ranks[0].await_event("held", place="forward 3")
        ranks[1].kill()
        newcomer = group.start(train, store, 1, 2, TOTAL, gather_s=0.2)
        newcomer.await_event("ready")
        with pytest.raises(WorkerFailedError):
            newcomer.await_event("members", timeout_s=2.5)
        ranks[0].command("go on")
        check_end([ranks[0], newcomer])


def test_a_process_that_comes_after_the_last_step_trains_nothing(store: str) -> None:
    with WorkerGroup() as group:
        ranks = started(group, store, 2)
        check_end(ranks)
        late = group.start(train, store, 1, 2, TOTAL)
        assert late.await_event("returned")["value"]["final"] == flat(make_model()).tolist()
        assert not late.events("did")


def test_deaths_and_joins_leave_nothing_behind(store: str) -> None:
    num_kills, warm = 12, NUM_WARM
    with WorkerGroup() as group:
        stays = group.start(train, store, 0, 2, 100_000, every_s=0.005, settle_s=5.0)
        held = []
        for _ in range(num_kills):
            joins = group.start(train, store, 1, 2, 100_000, every_s=0.005)
            held.append(stays.await_event("held", replicas=2))
            joins.kill()
        for what in ("num_descriptors", "threads"):
            assert max(each[what] for each in held[warm:]) <= max(each[what] for each in held[:warm]), what
        assert held[-1]["resident_bytes"] < 1.05 * held[warm]["resident_bytes"]


def test_a_replica_that_breaks_out_of_the_loop_leaves_and_is_no_lost_one(store: str) -> None:
    with WorkerGroup() as group:
        ranks = [group.start(train, store, rank, 3, TOTAL, breaks_after=3 if rank == 1 else None) for rank in range(3)]
        left, stayed = ranks[1], [ranks[0], ranks[2]]
        assert left.await_event("ended", 30.0)["reason"] == "the program left the loop over its steps"
        left.await_event("returned", 30.0)
        check_end(stayed)
        for each in stayed:
            assert each.events("members")[-1]["ranks"] == [0, 2]
            assert not each.events("lost")
        check_shares(stayed, range(4, TOTAL))


def test_a_replica_that_raises_between_two_steps_is_lost_and_does_not_end_the_training(store: str) -> None:
    with WorkerGroup() as group:
        ranks = [group.start(train, store, rank, 3, TOTAL, raises="after 3" if rank == 1 else "") for rank in range(3)]
        failed, stayed = ranks[1], [ranks[0], ranks[2]]
        assert failed.await_event("raised", 30.0)["type"] == "ValueError"
        (ended,) = failed.events("ended")
        assert ended["error"] == "the program raised an error between two steps"
        check_end(stayed)
        for each in stayed:
            assert [lost["rank"] for lost in each.events("lost")] == [1]
        check_shares(stayed, range(4, TOTAL))

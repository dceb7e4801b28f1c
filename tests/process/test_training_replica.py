"""A replica of two processes: its part of a micro-batch, how they act as one, and how they end and come back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import multiworld as mw
from multiworld.testing import scaled
from multiworld.training.engine.facts import Facts
from multiworld.training.errors import ReplicaBrokenError
from multiworld.training.replica.replica import Replica

from .one_process import in_thread, worlds
from .training_lives import train
from .training_sync_program import INNER_LR, MAX_NORM, NUM_MICRO_BATCHES, loss_of, make_model, rows

TOTAL, KILL_AT = 100, 28

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]


class Rows(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


def replicas_of(group: list[mw.World], index: int = 0) -> list[Replica]:
    return [
        Replica("job", index * len(group) + world.rank, len(group), lambda name, rank, size, world=world: world)  # type: ignore[misc]
        for world in group
    ]


def test_processes_of_a_replica_share_out_the_rows_of_a_micro_batch() -> None:
    rows = torch.arange(4)
    with worlds(2) as group:
        first, second = replicas_of(group)
        assert first.part({"x": [rows, "kept"]})["x"][1] == "kept"
        assert torch.equal(first.part({"x": [rows]})["x"][0], torch.tensor([0, 2]))
        assert torch.equal(second.part(Rows(rows, rows)).targets, torch.tensor([1, 3]))
        with pytest.raises(ValueError, match="3 rows cannot be dealt to 2 processes"):
            first.part(torch.arange(3))


def test_a_process_that_heard_nothing_takes_what_the_other_one_heard() -> None:
    facts = [Facts(step=4, done=(1, 2)), Facts(step=4)]

    def fail() -> list[Facts]:
        raise mw.WorldBrokenError("others", 1, 3, "lost")

    with worlds(2) as group:
        first, second = replicas_of(group)
        other = in_thread(first.as_one, lambda: facts)
        assert second.as_one(fail) == facts
        assert other.result() is facts
        failing = in_thread(first.as_one, fail)
        with pytest.raises(mw.WorldBrokenError, match="others"):
            second.as_one(fail)
        with pytest.raises(mw.WorldBrokenError, match="others"):
            failing.result()


def test_processes_agree_on_an_id_and_on_what_is_true_in_all_of_them() -> None:
    with worlds(2) as group:
        first, second = replicas_of(group)
        other = in_thread(lambda: (second.agree_on_id("b"), second.all_true(True), second.all_true(True)))
        assert (first.agree_on_id("a"), first.all_true(True), first.all_true(False)) == ("a", True, False)
        assert other.result() == ("a", True, False)


def test_a_lost_process_ends_its_replica_with_a_typed_error() -> None:
    with worlds(2) as group:
        first, _ = replicas_of(group, index=3)
        assert first.world is group[0]
        first.check()
        group[1].abort()
        with pytest.raises(ReplicaBrokenError, match="replica 3 lost a process, so its process 0 ends, too") as raised:
            first.all_true(True)
        assert (raised.value.replica, raised.value.shard) == (3, 0)


def loss_of_one_process() -> tuple[list[float], torch.Tensor]:
    """Do the training of the program in this process alone, on whole batches."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=INNER_LR)
    losses = []
    for step in range(TOTAL):
        optimizer.zero_grad()
        loss = torch.stack([loss_of(model, rows(step, number)) for number in range(NUM_MICRO_BATCHES)]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_replica_that_loses_a_process_comes_back_as_one_and_the_result_is_that_of_one_process(tmp_path: Path) -> None:
    lives = train(tmp_path, "fsdp", num_processes=4, total=TOTAL, killed_rank=3, kill_at=KILL_AT)
    losses, final = loss_of_one_process()
    by_rank = {rank: [life for life in lives if life.rank == rank] for rank in range(4)}
    assert [len(by_rank[rank]) for rank in range(4)] == [1, 1, 2, 2]  # both processes of the replica are new ones
    for rank in (0, 1):
        (life,) = by_rank[rank]
        assert [life.losses[step] for step in range(TOTAL)] == pytest.approx(losses, rel=1e-9)
        assert life.shares[KILL_AT] == list(range(NUM_MICRO_BATCHES))  # the others' share was computed here
    for rank in (2, 3):
        before, after = by_rank[rank]
        assert list(before.shares) == list(range(KILL_AT))
        assert after.shares[TOTAL - 1]
    assert by_rank[2][1].shares == by_rank[3][1].shares
    for life in lives:
        if life.final is not None:
            torch.testing.assert_close(torch.tensor(life.final, dtype=torch.float64), final, rtol=1e-8, atol=1e-10)
    assert sum(life.final is not None for life in lives) == 4

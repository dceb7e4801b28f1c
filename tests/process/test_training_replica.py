"""A replica of two processes: its mesh, its part of a micro-batch, and how it ends."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import multiworld as mw
from multiworld.training.engine.facts import Facts
from multiworld.training.errors import ReplicaBrokenError
from multiworld.training.replica.replica import Replica

from .one_process import in_thread, worlds


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

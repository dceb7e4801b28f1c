"""A replica of two processes: its mesh, its part of a micro-batch, and how it ends."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from multiworld.training.errors import ReplicaBrokenError
from multiworld.training.replica.replica import Replica

from .one_process import worlds


class Rows(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


def test_processes_of_a_replica_share_out_the_rows_of_a_micro_batch() -> None:
    rows = torch.arange(4)
    with worlds(2) as group:
        first, second = (Replica(0, world.rank, 2, world) for world in group)
        assert first.part({"x": [rows, "kept"]})["x"][1] == "kept"
        assert torch.equal(first.part({"x": [rows]})["x"][0], torch.tensor([0, 2]))
        assert torch.equal(second.part(Rows(rows, rows)).targets, torch.tensor([1, 3]))
        with pytest.raises(ValueError, match="3 rows cannot be dealt to 2 processes"):
            first.part(torch.arange(3))


def test_a_lost_process_ends_its_replica_with_a_typed_error() -> None:
    with worlds(2) as group:
        first = Replica(3, 0, 2, group[0])
        first.check()
        group[1].abort()
        with pytest.raises(Exception, match="rank 1"):
            group[0].blocking.barrier(timeout_s=10)
        with pytest.raises(ReplicaBrokenError, match="replica 3 lost a process, so its process 0 ends, too") as raised:
            first.check()
        assert (raised.value.replica, raised.value.shard) == (3, 0)

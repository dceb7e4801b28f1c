"""Functions that a program launches, as with ``torch.distributed.launcher``: what they return, and how they fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from multiworld.elastic.agent.master_store import MasterStore
from multiworld.launcher import LaunchConfig, ResultError, elastic_launch

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_leaks")]

TWO = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=1)


@pytest.fixture(scope="module", autouse=True)
def what_stays() -> None:
    """The first c10d store of a process makes a pipe that stays, for all that follow."""
    MasterStore("127.0.0.1", 0).close()


def rank_and_sum(offset: int) -> tuple[int, float, str]:
    import torch
    import torch.distributed as dist

    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if restarts == "0":
        raise RuntimeError("the first attempt fails")
    dist.init_process_group("gloo")
    total = torch.full((1,), float(dist.get_rank() + offset))
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(os.environ["RANK"]), total.item(), restarts


def fail(name: str) -> None:
    raise LookupError(f"no {name}")


def test_a_function_runs_in_all_workers_again_if_need_be_and_what_they_return_comes_back() -> None:
    assert elastic_launch(TWO, rank_and_sum)(10) == {0: (0, 21.0, "1"), 1: (1, 21.0, "1")}


def leave(name: str) -> None:
    os._exit(0)


def test_a_function_that_ends_its_process_is_told_from_one_that_returns() -> None:
    with pytest.raises(ResultError, match="no result of leave from rank 0"):
        elastic_launch(LaunchConfig(1, 1, 1), leave)("data")


def test_a_function_that_raises_fails_as_torchs_does_with_its_name_and_reason(tmp_path: Path) -> None:
    config = LaunchConfig(1, 1, 1, max_restarts=0)
    with pytest.raises(ChildFailedError) as raised:
        elastic_launch(config, fail)("data")
    assert raised.value.name == "fail"
    rank, failure = raised.value.get_first_failure()
    assert (rank, failure.exitcode) == (0, 1)
    assert "LookupError: no data" in str(failure.message)

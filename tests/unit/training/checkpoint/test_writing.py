"""One checkpoint on the disk, by one or more writers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from multiworld.training.checkpoint.disk import Disk
from multiworld.training.checkpoint.finding import newest
from multiworld.training.checkpoint.loading import load
from multiworld.training.checkpoint.names import unfinished_name
from multiworld.training.checkpoint.orders import UnfinishedError
from tests.checkpoints import Trained, only, steps_in, write


def test_a_whole_checkpoint_has_dcps_files_and_a_manifest_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = write(tmp_path, Trained().train(2).state)
    assert path == tmp_path / "step-00000002"
    assert os.listdir(tmp_path) == ["step-00000002"]
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp", "manifest.json"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_dcp_loads_it_in_place(tmp_path: Path) -> None:
    trained, fresh = Trained().train(3), Trained(seed=1)
    path = write(tmp_path, trained.state)
    state: dict[str, Any] = {"model": {"net": fresh.model.state_dict()}, "step": 0}
    dcp_load(state, checkpoint_id=path)
    assert state["step"] == 3
    for mine, its in zip(fresh.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore::UserWarning")
def test_plain_dcp_makes_one_file_of_it(tmp_path: Path) -> None:
    trained = Trained().train(3)
    path = write(tmp_path / "all", trained.state)
    assert path is not None
    dcp_to_torch_save(path, tmp_path / "one.pt")
    one = torch.load(tmp_path / "one.pt", weights_only=True)
    assert torch.equal(one["model.net"]["0.weight"], trained.model.state_dict()["0.weight"])
    assert one["tracked.scheduler"]["last_epoch"] == 3


def test_two_writers_share_the_files_and_the_state_is_the_same(tmp_path: Path) -> None:
    trained = Trained().train(2)
    assert write(tmp_path, trained.state, writer=1, num_writers=2) is None
    path = write(tmp_path, trained.state, writer=0, num_writers=2)
    assert path is not None
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]
    back = Trained(seed=1)
    load(only(tmp_path), back.state)
    assert back == trained


def test_without_the_part_of_a_lost_writer_there_is_no_checkpoint_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match="writer 1 was lost before its part was written"):
        write(tmp_path, Trained().state, num_writers=2, gone=lambda _timeout_s: {1})
    assert os.listdir(tmp_path) == []


def test_the_first_writer_hears_why_another_one_failed(tmp_path: Path) -> None:
    class Full(Disk):
        def create_stream(self, path: Any, mode: str) -> Any:
            if str(path).endswith(".distcp"):
                raise OSError(28, "No space left on device", str(path))
            return super().create_stream(path, mode)

    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, Trained().state, writer=1, num_writers=2, disk=Full(sync=False))
    with pytest.raises(UnfinishedError, match="writer 1 failed: No space left on device"):
        write(tmp_path, Trained().state, writer=0, num_writers=2)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_hosts_do_not_share_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(
        UnfinishedError, match=r"writers \[1, 2\] of 3 left no part .* is it a directory that all hosts"
    ):
        write(tmp_path, Trained().state, num_writers=3, timeout_s=0.01)


def test_a_part_that_was_written_before_its_writer_was_lost_counts(tmp_path: Path) -> None:
    trained = Trained().train(1)
    write(tmp_path, trained.state, writer=1, num_writers=2)
    assert write(tmp_path, trained.state, num_writers=2, gone=lambda _timeout_s: {1}) is not None


def test_the_newest_stay_and_leftovers_of_deaths_go(tmp_path: Path) -> None:
    left = tmp_path / unfinished_name(1, "ofanotherone")
    left.mkdir(parents=True)
    (left / "__0_0.distcp").write_bytes(b"half")
    trained = Trained()
    for _ in range(4):
        write(tmp_path, trained.train(1).state, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-00000003", "step-00000004"]


def test_after_a_rollback_the_newest_is_what_was_saved_last(tmp_path: Path) -> None:
    for steps in (4, 2, 4):
        write(tmp_path, Trained().train(steps).state, keep=3)
    assert steps_in(tmp_path) == [4, 2, 4]
    found = newest(tmp_path)
    assert found is not None
    assert found.path.endswith("step-00000004-2")


def test_checkpoints_of_another_job_are_not_removed(tmp_path: Path) -> None:
    write(tmp_path, Trained().train(1).state, job="other")
    for steps in (2, 3):
        write(tmp_path, Trained().train(steps).state, keep=1)
    assert steps_in(tmp_path) == [3, 1]

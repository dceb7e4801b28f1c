"""All processes of a sharded replica begin with the same checkpoint, also if one cannot read the newest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import multiworld as mw
from multiworld.testing import scaled
from multiworld.training.checkpoint.config import Checkpoint
from multiworld.training.checkpoint.keeper import CheckpointKeeper
from multiworld.training.engine.restarting import restart_alike
from multiworld.training.errors import NoCommonCheckpointError
from multiworld.training.replica.replica import Replica
from tests.checkpoints import Trained, write

from .one_process import in_thread, worlds

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(60))]


@dataclass
class Process:
    """One of two processes of a replica, with a view of the checkpoints of its own."""

    world: mw.World
    replica: Replica
    trained: Trained
    keeper: CheckpointKeeper

    def restart(self, *, is_source: bool = True) -> None:
        restart_alike(self.world, self.replica, self.trained.state, self.keeper.restart, is_source=is_source)


def saved(folder: Path, *steps: int) -> Path:
    """Save the same training after so many steps."""
    trained = Trained(seed=7)
    for step in steps:
        write(folder, trained.train(step - trained.state.step).state)
    return folder


@contextmanager
def replica_of_two(*folders: Path) -> Iterator[list[Process]]:
    def process(outer: mw.World, inner: mw.World) -> Process:
        trained = Trained(seed=inner.rank)
        replica = Replica("job", inner.rank, 2, lambda name, rank, size: inner)
        keeper = CheckpointKeeper(
            Checkpoint(folders[inner.rank]),
            job="job",
            member=f"m{inner.rank}",
            state=trained.state,
            publish=lambda kind, **fields: None,
        )
        return Process(outer, replica, trained, keeper)

    with worlds(2) as outer, worlds(2) as inner:
        yield [process(*each) for each in zip(outer, inner, strict=True)]


def damage(checkpoint: Path) -> None:
    data = next(iter(checkpoint.glob("*.distcp")))
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)


def test_both_take_the_newest_that_both_can_read(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", 2, 4, 6)
    two = tmp_path / "two"
    shutil.copytree(one, two)
    damage(sorted(two.iterdir())[-1])
    with replica_of_two(one, two) as (first, second):
        other = in_thread(first.restart)
        second.restart()
        other.result()
        assert (first.trained.state.step, second.trained.state.step) == (4, 4)
        assert first.trained == second.trained == Trained(seed=7).train(4)


def test_one_that_does_not_load_has_no_say(tmp_path: Path) -> None:
    folder = saved(tmp_path / "one", 2, 4)
    with replica_of_two(folder, folder) as (first, second):
        other = in_thread(first.restart)
        second.restart(is_source=False)
        other.result()
        assert (first.trained.state.step, second.trained.state.step) == (4, 0)


def test_a_process_without_any_checkpoint_ends_the_others_that_have_one(tmp_path: Path) -> None:
    folder = saved(tmp_path / "one", 2, 4)
    (tmp_path / "empty").mkdir()
    with replica_of_two(folder, tmp_path / "empty") as (first, second):
        other = in_thread(second.restart)
        with pytest.raises(NoCommonCheckpointError, match="has no checkpoint up to step 0 that can be read here"):
            first.restart()
        first.world.abort()
        first.replica.world.abort()
        with pytest.raises(mw.MultiworldError):
            other.result()

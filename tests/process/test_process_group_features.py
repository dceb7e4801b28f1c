"""DDP, fully_shard, DTensor, pipelining and checkpoints over a world, beside any default group or none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import multiworld as mw
from multiworld.testing import Worker, WorkerGroup
from tests.process import process_group_programs as programs

SIZE = 2
WITHOUT_A_DEFAULT_GROUP = [
    "ddp",
    "ddp_with_a_hook",
    "pytorchs_hooks",
    "fsdp",
    "meshes_of_two_dimensions",
    "dtensor",
]  # PyTorch wants one for the others

_numbers = itertools.count()


class Team(NamedTuple):
    workers: list[Worker]
    store: str


@pytest.fixture(scope="module")
def team(torch_features: None) -> Iterator[Team]:
    with WorkerGroup() as group:
        workers = [group.start(programs.run_features, rank, SIZE) for rank in range(SIZE)]
        with mw.WorldManager() as host:
            yield Team(workers, host.serve_store("tcp://127.0.0.1:0"))
        for worker in workers:
            worker.command("quit")
        assert [worker.wait() for worker in workers] == [0] * SIZE


@pytest.mark.parametrize("backend", programs.BACKENDS)
@pytest.mark.parametrize("default", ["none", "own", "shared"])
@pytest.mark.parametrize("feature", list(programs.FEATURES))
def test_a_feature_of_pytorch_takes_a_world(
    team: Team, tmp_path: Path, feature: str, default: programs.Default, backend: str
) -> None:
    if default == "none" and feature not in WITHOUT_A_DEFAULT_GROUP:
        pytest.skip("PyTorch asks for a default group here, whichever")
    fields = {"store": team.store, "backend": backend, "default": default, "folder": str(tmp_path)}
    world = f"{feature}-{next(_numbers)}"
    for worker in team.workers:
        worker.command(feature, world=world, **fields)
    for worker in team.workers:
        done = worker.await_event(("done", "failed"), 40)
        assert done.event == "done", done["text"]
        assert done["left"] == [0, 0, 0, 0], "c10d still knows something"

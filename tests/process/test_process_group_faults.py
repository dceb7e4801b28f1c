"""A world breaks under PyTorch's own distributed features: they raise our errors, and training goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import multiworld as mw
from multiworld.testing import Worker, WorkerGroup
from tests.bounds import KILL_S
from tests.process import process_group_programs as programs

pytestmark = pytest.mark.usefixtures("torch_features", "no_leaks")

SIZE = 3


@pytest.fixture
def store() -> Iterator[str]:
    with mw.WorldManager() as host:
        yield host.serve_store("tcp://127.0.0.1:0")


@pytest.mark.parametrize("backend", programs.BACKENDS)
@pytest.mark.alone
def test_a_killed_member_ends_whatever_uses_the_group_with_our_error(backend: str, store: str, tmp_path: Path) -> None:
    with WorkerGroup() as workers:
        members = [
            workers.start(programs.use_until_broken, rank, SIZE, store, backend, str(tmp_path)) for rank in range(SIZE)
        ]
        for feature in programs.REPEATED:
            workers.await_all("busy", 40, feature=feature)
        killed_at = members[1].kill()
        for member, feature in itertools.product((members[0], members[2]), programs.REPEATED):
            ended = member.await_event("ended", 5, feature=feature)
            assert ended["error"] == "PeerDiedError", ended["trace"]
            assert ended["fields"]["rank"] == 1
            assert ended.at - killed_at < KILL_S
            afterwards = member.await_event("afterwards", 5, feature=feature)
            assert afterwards["errors"] == ["PeerDiedError"] * 3, feature
            assert afterwards.at - ended.at < KILL_S
        assert [members[0].wait(), members[2].wait()] == [0, 0]


@pytest.mark.parametrize("backend", programs.BACKENDS)
def test_a_program_that_ends_with_a_group_ends_cleanly(backend: str, store: str) -> None:
    with WorkerGroup() as workers:
        members = [workers.start(programs.end_without_cleaning_up, rank, 2, store, backend) for rank in range(2)]
        workers.await_all("ready", 40)
        for member in members:
            member.command("end")
            assert member.wait(10) == 0
            assert member.stderr == ""


@pytest.mark.parametrize("backend", programs.BACKENDS)
@pytest.mark.parametrize("victim", [0, 2])
def test_training_goes_on_with_a_replacement_as_if_nothing_had_happened(backend: str, victim: int, store: str) -> None:
    num_steps, dies_at = 8, 3
    with WorkerGroup() as workers:
        jobs = [(rank, dies_at if rank == victim else None, False) for rank in range(SIZE)]
        jobs.append((victim, None, True))
        members: list[Worker] = []
        for rank, at, is_new in jobs:
            if is_new:
                for member in members:
                    if member is not members[victim]:
                        noticed = member.await_event("noticed", 40)
                        assert noticed["error"] == "PeerDiedError", noticed["message"]
                        assert noticed["fields"]["rank"] == victim
            members.append(workers.start(programs.train, rank, SIZE, store, backend, num_steps, at, is_new))
        expected = programs.train_alone(SIZE, num_steps)
        for (rank, at, is_new), member in zip(jobs, members, strict=True):
            if at is not None:
                continue
            losses = member.await_event("returned", 40)["value"]
            assert [step for step, _ in losses] == list(range(losses[0][0], num_steps))
            assert is_new == (losses[0][0] > 0)
            for step, loss in losses:
                assert loss == pytest.approx(expected[step][rank], abs=1e-6)

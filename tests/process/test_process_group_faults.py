"""A world breaks under PyTorch's own distributed features: they raise our errors, and training goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import multiworld as mw
from multiworld.testing import WorkerGroup
from tests.bounds import KILL_S
from tests.process import process_group_programs as programs

pytestmark = pytest.mark.usefixtures("no_leaks")

BACKENDS = ["tcp", "gloo"]
SIZE = 3


@pytest.fixture
def store() -> Iterator[str]:
    with mw.WorldManager() as host:
        yield host.serve_store("tcp://127.0.0.1:0")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("feature", list(programs.REPEATED))
def test_a_killed_member_ends_what_uses_the_group_with_our_error(feature: str, backend: str, store: str) -> None:
    with WorkerGroup() as workers:
        members = [workers.start(programs.use_until_broken, rank, SIZE, store, backend, feature) for rank in range(SIZE)]
        workers.await_all("busy", 40)
        killed_at = members[1].kill()
        for member in (members[0], members[2]):
            ended = member.await_event("ended", 5)
            assert ended["error"] == "PeerDiedError", ended["message"]
            assert ended["fields"]["rank"] == 1
            assert ended.at - killed_at < KILL_S
            assert member.await_event("afterwards", 5)["errors"] == ["PeerDiedError"] * 3
            assert member.wait() == 0
            assert member.stderr == ""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("victim", [0, 2])
def test_training_goes_on_with_a_replacement_as_if_nothing_had_happened(
    backend: str, victim: int, store: str
) -> None:
    num_steps, dies_at = 8, 3
    with WorkerGroup() as workers:
        jobs = [(rank, dies_at if rank == victim else None, False) for rank in range(SIZE)]
        jobs.append((victim, None, True))
        members = []
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

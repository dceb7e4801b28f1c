"""A training written for torchrun, and the same on worlds, under the launcher: a rank dies, the result is the same."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from examples.train_ddp import batch, loss_of, make_model
from multiworld.testing.deadlines import scaled
from tests import warm_programs

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, KILL_AT, CHECKPOINT = 20, 13, 10
BEGUN = re.compile(r"rank (\d) of 3, pid (\d+): from step (\d+)(?:, steps done again: (\d+))?")

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Life:
    """What a process said when it began, or went on."""

    rank: int
    pid: int
    step: int
    again: int | None


def train(name: str, *options: str) -> tuple[list[Life], list[float]]:
    """Run an example in which rank 1 kills itself; return its lives in order, and what the ranks' losses were."""
    run = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=3", "--max-restarts=3", str(EXAMPLES / name)]
    command = [*run, f"--steps={STEPS}", "--pause-s=0", f"--kill-at={KILL_AT}", *options]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = [match.groups() for match in BEGUN.finditer(ended.stdout)]
    lives = [Life(int(rank), int(pid), int(step), int(again) if again else None) for rank, pid, step, again in found]
    assert [life.step for life in lives[:3]] == [0, 0, 0], ended.stdout
    assert sorted(life.rank for life in lives) == [0, 0, 1, 1, 2, 2], ended.stdout
    return lives, [float(loss) for loss in re.findall(r"loss at the end (\S+)", ended.stdout)]


def loss_undisturbed() -> float:
    """Do the same training in this process alone, on the whole batches."""
    net, optimizer = make_model()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, batch(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return loss_of(net, batch(-1)).item()


def test_a_program_written_for_torchrun_goes_on_at_its_checkpoint_with_the_result_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    lives, losses = train("train_ddp.py", f"--checkpoints={tmp_path}")
    again = {(life.step, life.again) for life in lives[3:]}
    # rank 0 may have been ended after the last step before the kill, and before it could note that
    assert again in ({(CHECKPOINT, KILL_AT - CHECKPOINT)}, {(CHECKPOINT, KILL_AT - CHECKPOINT - 1)})
    assert len({life.pid for life in lives}) == 6  # all were started again
    assert losses == pytest.approx([loss_undisturbed()] * 3, rel=0, abs=1e-6)


def test_the_same_training_on_worlds_goes_on_where_it_was_and_replaces_the_killed_rank_only() -> None:
    lives, losses = train("train_ddp_worlds.py")
    before, after = ({life.rank: life.pid for life in part} for part in (lives[:3], lives[3:]))
    assert {rank: after[rank] == before[rank] for rank in before} == {0: True, 1: False, 2: True}
    # what rank 1 sent in the step before may have been lost with it; then nobody who is left has done that step
    assert {life.step for life in lives[3:]} in ({KILL_AT}, {KILL_AT - 1})
    assert losses == pytest.approx([loss_undisturbed()] * 3, rel=0, abs=1e-6)


def test_the_same_training_on_resilient_steps_completes_the_step_of_the_loss() -> None:
    ended = run_example("train_from_torchrun.py", f"--steps={STEPS}", f"--kill-at={KILL_AT}")
    assert "rank 1 failed: killed by SIGKILL" in ended
    (loss,) = re.findall(r"loss at the end (\S+)", ended)
    assert float(loss) == pytest.approx(loss_undisturbed(), rel=0, abs=1e-6)


def test_a_loop_ported_from_torchft_uses_each_sample_once_though_a_replica_dies(tmp_path: Path) -> None:
    ended = run_example("train_from_torchft.py", "--kill-at=7", f"--ledger={tmp_path}")
    assert "rank 0 failed: killed by SIGKILL" in ended
    assert ended.count("20 steps with 480 samples: each sample once, the global batch constant") == 1, ended
    assert set(re.findall(r"step \d+: (\d+) samples", ended)) == {"24"}


@pytest.mark.timeout(scaled(120))
def test_a_training_that_lost_all_goes_on_with_another_number_of_replicas_to_the_same_bits(tmp_path: Path) -> None:
    lost = run_example("train_resume.py", f"--folder={tmp_path / 'a'}", "--die-at=17", restarts=0, fails=True)
    assert "parameters at the end" not in lost
    resumed = run_example("train_resume.py", f"--folder={tmp_path / 'a'}", replicas=2)
    begun = re.findall(r"of 2, pid \d+: from step (\d+)", resumed)
    assert len(begun) == 2, resumed
    assert int(begun[0]) >= 5
    undisturbed = run_example("train_resume.py", f"--folder={tmp_path / 'b'}", replicas=1)
    results = [re.findall(r"parameters at the end: (\w+)", said) for said in (resumed, undisturbed)]
    assert len(results[0]) == 1
    assert results[0] == results[1]


def test_replicas_that_meet_once_in_ten_steps_train_on_when_one_is_killed() -> None:
    ended = run_example("train_diloco.py", "--kill-at=24")
    assert "rank 1 failed: killed by SIGKILL" in ended
    ((untrained, trained),) = re.findall(r"loss (\S+) of a model that says 0, (\S+) of this one", ended)
    assert float(trained) < 0.4 * float(untrained), ended


@pytest.mark.timeout(scaled(120))
def test_pipelines_of_a_model_that_nobody_cut_train_on_when_a_stage_is_killed() -> None:
    ended = run_example("train_pipeline.py", "--steps=40", "--kill-at=20", replicas=4, timeout_s=100)
    assert "rank 3 failed: killed by SIGKILL" in ended
    assert "LayersLostError" not in ended
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+)", ended)}
    assert losses[39] < 0.3 * losses[0], ended
    first = {int(rank) for rank in re.findall(r"rank (\d): from step 0 layers", ended)}
    assert first == {0, 1, 2, 3}, ended
    assert "3 processes" in ended, ended


def run_example(
    name: str, *options: str, replicas: int = 3, restarts: int = 3, fails: bool = False, timeout_s: float = 50
) -> str:
    run = [sys.executable, "-m", "multiworld.run", f"--nproc-per-node={replicas}", f"--max-restarts={restarts}"]
    command = [*run, "--warm", str(EXAMPLES / name), *options]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert (ended.returncode != 0) == fails, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr

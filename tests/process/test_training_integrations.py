"""Trainers of other libraries on resilient steps: a replica is killed and replaced, and the result is the same."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from multiworld.training.data.opening import open_loader
from tests import warm_programs

from .training_integration_program import (
    EPOCHS,
    GLOBAL_BATCH,
    KILL_AT,
    KILLED_RANK,
    LEARNING_RATE,
    MAX_NORM,
    SEED,
    STEPS_PER_EPOCH,
    Rows,
    linear,
    loss_of,
    make_net,
)

PROGRAM = Path(__file__).with_name("training_integration_program.py")
TOTAL = EPOCHS * STEPS_PER_EPOCH
PACKAGES = {"huggingface": ["accelerate", "transformers"], "lightning": ["lightning"]}
PRELOAD = {"huggingface": "transformers.trainer", "lightning": "lightning.pytorch"}

pytestmark = pytest.mark.process


def trained_alone() -> tuple[list[float], list[torch.Tensor]]:
    """Do the same training in a plain loop in this process: the loss of each step, and the parameters."""
    loader = open_loader(
        Rows(), global_batch=GLOBAL_BATCH, micro_batch=GLOBAL_BATCH, shuffle=True, seed=SEED, drop_last=True
    )
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=0.0)
    scheduler = linear(optimizer)
    losses = []
    for step in range(TOTAL):
        ((_, batch),) = loader.fetch(step, [0])
        optimizer.zero_grad()
        loss = loss_of(net, **batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, [each.detach() for each in net.parameters()]


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_trainer_goes_on_when_a_replica_is_killed_with_the_result_of_a_plain_loop(name: str, tmp_path: Path) -> None:
    missing = [each for each in PACKAGES[name] if importlib.util.find_spec(each) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install -e '.[integrations]'")
    run = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=2", "--max-restarts=1", "--warm"]
    ended = warm_programs.run(
        [*run, f"--preload={PRELOAD[name]}", str(PROGRAM), name, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lives = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(tmp_path.glob("?-*"), key=lambda path: path.stat().st_ctime_ns)
    ]
    (killed,) = (life for life in lives if "final" not in life[-1])
    finished = [life for life in lives if life is not killed]
    assert [said["step"] for said in killed] == list(range(1, KILL_AT + 1))
    losses, parameters = trained_alone()
    begins = sorted(life[0]["step"] for life in finished)
    assert begins[0] == 1
    assert begins[1] in (KILL_AT, KILL_AT + 1)
    for life in finished:
        *steps, last = life
        assert [said["step"] for said in steps] == list(range(steps[0]["step"], TOTAL + 1))
        assert [said["epoch"] for said in steps] == pytest.approx([said["step"] / STEPS_PER_EPOCH for said in steps])
        assert [said["loss"] for said in steps] == pytest.approx(losses[steps[0]["step"] - 1 :], rel=1e-5)
        for found, wanted in zip(last["final"], parameters, strict=True):
            torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-5, atol=1e-6)
    ranks = sorted(path.name[0] for path in tmp_path.glob("?-*"))
    assert ranks == sorted(["0", "1", str(KILLED_RANK)])
    if name == "huggingface":
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "checkpoint-16",
            "checkpoint-20",
            "checkpoint-8",
        ]

"""The small parts of the main job: plan, answers, messages, options, and what the pipeline may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import multiworld.demo
from multiworld.demo.answers import Checker
from multiworld.demo.faults import plan_faults
from multiworld.demo.options import Options
from multiworld.demo.protocol import Notice, Role


def test_plan_depends_on_the_seed_and_keeps_its_order() -> None:
    first, second, other = (plan_faults(seconds=18, seed=seed) for seed in (1, 1, 2))
    assert first == second != other
    assert [(fault.kind, fault.replica) for fault in first] == [("kill", "b1"), ("kill", "b2"), ("freeze", "b2")]
    times = [fault.at_s for fault in first]
    assert times == sorted(times)
    assert min(times) > 0
    assert max(times) < 18


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e9])
def test_absurd_durations_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Options(seconds=seconds)


def test_checker_counts_wrong_and_different_predictions_over_repeated_batches() -> None:
    reference = [torch.eye(10)[[1, 2]], torch.eye(10)[[3]]]
    checker = Checker(reference, [torch.tensor([1, 2]), torch.tensor([4])])
    checker.check(0, torch.eye(10)[[1, 2]])
    checker.check(3, torch.eye(10)[[3]] * 1.5)
    checker.check(2, torch.eye(10)[[1, 7]])
    assert (checker.num_images, checker.num_correct, checker.num_correct_single_process) == (5, 3, 4)
    assert checker.num_different == 1
    assert checker.max_logit_difference == 1.0
    assert checker.images_in(3) == 1
    assert checker.accuracy == 0.6


def test_checker_refuses_answers_and_references_of_the_wrong_shape() -> None:
    with pytest.raises(ValueError, match="same micro-batches"):
        Checker([torch.zeros(2, 10)], [torch.zeros(3)])
    with pytest.raises(ValueError, match="request 0"):
        Checker([torch.zeros(2, 10)], [torch.zeros(2)]).check(0, torch.zeros(1, 10))


def test_messages_survive_the_pipe() -> None:
    role = Role(name="b1", number=3, store="tcp://h:1", backend="auto", token="t", lease_s=2.0, weights="/w")
    assert Role.from_line(role.to_line()) == role
    notice = Notice(kind="WorldBroken", at=1.5, world="a-b1", generation=2, error="PeerDiedError", text="line\nline")
    assert "\n" not in notice.to_line()
    assert Notice.from_line(notice.to_line().encode()) == notice


def test_command_line_help_needs_no_torch() -> None:
    program = (
        "import sys; from multiworld.cli.demo import main\n"
        "try: main(['--help'])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "--no-faults" in finished.stdout


@pytest.mark.parametrize("name", ["pipeline", "front"])
def test_the_pipeline_is_built_on_the_public_interface_only(name: str) -> None:
    path = Path(multiworld.demo.__path__[0]) / f"{name}.py"
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = {
        alias.name
        for node in imports
        if isinstance(node, ast.Import)
        for alias in node.names
        if "multiworld" in alias.name
    }
    assert ours == {"multiworld"}
    relative = {node.module for node in imports if isinstance(node, ast.ImportFrom) and node.level}
    assert relative <= {"ledger", "pipeline"}

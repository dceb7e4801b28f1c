"""The small parts of the main job: plan, answers, options, stages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from multiworld.demo.answers import Checker
from multiworld.demo.faults import PlannedFault, plan_faults
from multiworld.demo.model import build_model, predict
from multiworld.demo.options import Options
from multiworld.demo.stages import make_pipeline, question


def test_plan_depends_on_the_seed_and_has_its_kinds_in_any_order() -> None:
    first, second, other = (plan_faults(seconds=18, seed=seed) for seed in (1, 1, 2))
    assert first == second != other
    for seed in range(20):
        plan = plan_faults(seconds=18, seed=seed)
        kinds = sorted((fault.kind, fault.stage) for fault in plan)
        assert kinds[:2] == [("freeze", "b"), kinds[1]]
        assert [kind for kind in kinds if kind == ("kill", "b")] == [("kill", "b")] * 2
        assert sum(kind in [("kill", "a"), ("kill", "c")] for kind in kinds) == 1
        times = [fault.at_s for fault in plan]
        assert times == sorted(times)
        assert 0 < min(times) <= max(times) < 18
        assert all(fault.pick(["b-1", "b-2"]) in ("b-1", "b-2") for fault in plan)


def test_a_fault_is_called_by_its_signal_and_its_victim() -> None:
    freeze = PlannedFault(kind="freeze", stage="b", at_s=1.0, draw=0.99)
    assert freeze.name(freeze.pick(["b-1", "b-2"])) == "SIGSTOP of b-2"
    assert freeze.name() == "SIGSTOP of a replica of b"


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


def test_stages_in_a_row_give_the_answer_of_the_whole_model_and_say_where_it_was_made() -> None:
    model = build_model(seed=1).eval()
    images = torch.rand(5, 1, 8, 8)
    message = question(images)
    with torch.inference_mode():
        for stage in make_pipeline(model, Options()).stages:
            message = stage.work(message)
    assert torch.equal(message["values"], predict(model, [images])[0])
    assert message["route"].tolist() == [os.getpid()] * 3


def test_command_line_help_needs_no_torch() -> None:
    program = (
        "import sys; from multiworld.cli.demo import main\n"
        "try: main(['--help'])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "--no-faults" in finished.stdout

"""Trainings in pipelines without processes: what dies, joins, stops or parts, in any order and phase.

The benchmark's lines ``pipe-simulated`` and ``pipe-schedules`` run the same schedules by the thousand.
"""

from __future__ import annotations

import pytest

from benchmarks.training.simulated.disturbed_pipelines import HANG_S, hit_in_recovery, killed_at_random
from benchmarks.training.simulated.pipelines import Training


@pytest.mark.parametrize("seed", range(8))
def test_each_sample_counts_once_however_processes_are_killed(seed: int) -> None:
    assert killed_at_random(seed).report.problems == ()


@pytest.mark.parametrize("seed", range(12))
def test_training_goes_on_after_failures_in_a_recovery(seed: int) -> None:
    disturbed = hit_in_recovery(seed)
    assert disturbed.report.problems == ()
    assert disturbed.longest_s < HANG_S


def test_a_seed_gives_the_same_schedule_again() -> None:
    first, second = hit_in_recovery(1), hit_in_recovery(1)
    assert (first.hit, first.longest_s, str(first.report)) == (second.hit, second.longest_s, str(second.report))


def test_steps_from_after_the_checkpoint_with_which_all_begin_again_do_not_count() -> None:
    """All members are lost. Nobody that comes then knows what they have done."""
    with Training(0, 4, num_steps=6, saved_step=1) as training:
        training.run_while(lambda: training.furthest < 4)
        for program in list(training.programs):
            training.kill(program)
            training.start(program.rank)
        training.run_while(lambda: bool(training.living or training.num_coming))
        report = training.report()
    assert (report.steps, report.problems) == (6, ())
    assert report.void == 3

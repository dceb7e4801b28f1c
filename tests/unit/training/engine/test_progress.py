"""What counts of a step's micro-batches on one member."""

from __future__ import annotations

from multiworld.training.engine.progress import StepProgress


def test_what_a_micro_batch_recorded_counts_when_it_ends() -> None:
    progress = StepProgress()
    progress.begin_micro_batch()
    progress.record({"loss": 9.0})  # of one that does not end, and comes again
    for number, loss in ((2, 1.0), (5, 3.0)):
        progress.begin_micro_batch()
        progress.record({"loss": loss})
        progress.end_micro_batch(number)
    assert progress.done == [2, 5]
    assert progress.values == {"loss": [1.0, 3.0]}


def test_values_that_are_not_finite_are_sent_as_text() -> None:
    progress = StepProgress(values={"loss": [0.5, float("inf"), float("nan")]})
    assert progress.values_for_json() == {"loss": (0.5, "inf", "nan")}


def test_times_of_one_part_add_up() -> None:
    progress = StepProgress()
    for seconds in ({"data": 1.0}, {"data": 0.5, "wait": 2.0}):
        progress.spent(seconds)
    assert progress.seconds == {"data": 1.5, "wait": 2.0}

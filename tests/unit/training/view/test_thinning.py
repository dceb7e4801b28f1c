"""A thinned record has all failures and sums, and fewer lines: the report of it is that of the whole record."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.training.events import CheckpointFailed, CheckpointSaved, StepCommitted, StepsCommitted, TrainingEvent
from multiworld.training.view.lines import event_of, line_of, merged
from multiworld.training.view.report import TrainingReport, reports_of
from multiworld.training.view.report_text import report_text
from multiworld.training.view.thinning import halved, thinned

from .runs import Run
from .test_lines import step


def lengths(events: list[TrainingEvent]) -> list[tuple[int, int]]:
    """Return the last step of each line, and of how many it is."""
    return [
        (each.step, each.num_steps if isinstance(each, StepsCommitted) else 1)
        for each in events
        if isinstance(each, StepCommitted)
    ]


def report_of(records: Mapping[str, list[TrainingEvent]]) -> TrainingReport:
    (report,) = reports_of(merged(records.values()))
    return report


def test_a_run_of_steps_becomes_one_line_with_its_mean_and_sums() -> None:
    events: list[TrainingEvent] = [step(step=each, at=float(each), values={"loss": float(each)}) for each in range(10)]
    events[4] = step(step=4, at=4.0, values={"loss": 4.0, "accuracy": 0.5}, redone=2)
    found = thinned(events, 4)

    assert lengths(found) == [(3, 4), (7, 4), (8, 1), (9, 1)]
    second = found[1]
    assert isinstance(second, StepsCommitted)
    assert (second.at, second.num_samples, second.redone) == (7.0, 4 * 64, 2)
    assert second.took_s == pytest.approx(4 * 0.05)
    assert second.seconds == {"forward": pytest.approx(4 * 0.02)}
    assert second.values == {"loss": 5.5, "accuracy": 0.5}
    again = thinned(found, 8)
    assert lengths(again) == [(7, 8), (8, 1), (9, 1)]
    assert isinstance(again[0], StepsCommitted)
    assert again[0].values == {"loss": 3.5, "accuracy": 0.5}
    assert event_of(line_of(again[0])) == again[0]


def test_a_loss_that_is_not_finite_is_not_hidden_in_a_mean() -> None:
    events = [step(step=each, values={"loss": math.nan if each == 1 else 1.0}) for each in range(4)]
    (found,) = thinned(events, 4)
    assert isinstance(found, StepCommitted)
    assert math.isnan(found.values["loss"])


def test_steps_beside_other_events_stay_and_of_checkpoints_some() -> None:
    def saved(at: int) -> CheckpointSaved:
        return CheckpointSaved(
            job="gpt",
            member="m1",
            rank=0,
            generation=1,
            at=float(at),
            step=at,
            path="p",
            size_bytes=1,
            stall_s=0,
            took_s=0,
        )

    failed = CheckpointFailed(job="gpt", member="m1", rank=0, generation=1, at=32.0, step=32, reason="no space")
    events: list[TrainingEvent] = []
    for each in range(64):
        events += [step(step=each, at=each + 0.5), *([saved(each + 1)] if each % 4 == 3 else [])]
        events += [failed] if each == 31 else []
    found = thinned(events, 16)

    assert lengths(found) == [(15, 16), *((each, 1) for each in range(16, 48)), (63, 16)]
    assert found.count(failed) == 1
    assert [each.step for each in found if isinstance(each, CheckpointSaved)] == [16, *range(20, 49, 4), 64]


def test_a_step_that_comes_again_is_not_of_the_run_before() -> None:
    events = [step(step=each) for each in (0, 1, 0, 1, 2, 3)]
    assert lengths(thinned(events, 4)) == [(0, 1), (1, 1), (3, 4)]


def test_lines_become_half_as_many_however_often() -> None:
    events: list[TrainingEvent] = [step(step=each) for each in range(4096)]
    for _ in range(8):
        shorter = halved(events)
        assert 2 * len(shorter) <= len(events)
        events = shorter
    assert sum(num for _, num in lengths(events)) == 4096


def test_the_report_says_what_was_thinned() -> None:
    run = Run(total=400).steps(200).lose(1).steps(199).end()
    whole = report_of(run.events)
    report = report_of({member: thinned(thinned(its, 8), 16) for member, its in run.events.items()})

    assert (whole.num_thinned, whole.max_per_line) == (0, 1)
    assert report.max_per_line == 16
    assert 300 < report.num_thinned < 400
    assert f"of {report.num_thinned} steps far from any failure it has only means" in report_text(report, str)
    assert "thinned" not in report_text(whole, str)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 70), st.sampled_from(["lose", "join", "nothing"])), min_size=1, max_size=6),
    st.lists(st.integers(0, 6), min_size=12, max_size=12),
)
def test_a_report_of_thinned_records_is_that_of_the_whole_ones(
    parts: list[tuple[int, str]], exponents: list[int]
) -> None:
    run = Run(num_members=3, total=1000)
    for num_steps, what in parts:
        run.steps(num_steps)
        if what == "lose" and len(run.members) > 1:
            run.lose(min(run.members))
        elif what == "join":
            run.join(next(rank for rank in range(20) if rank not in run.members))
    run.end()
    records = {
        member: thinned(its, 2**exponent)
        for (member, its), exponent in zip(run.events.items(), [*exponents, *[3] * 20], strict=False)
    }
    whole, report = report_of(run.events), report_of(records)

    for events in run.events.values():
        kept = records[events[0].member]
        assert [each for each in events if not isinstance(each, StepCommitted)] == [
            each for each in kept if not isinstance(each, StepCommitted)
        ]
    assert report.recoveries == whole.recoveries
    assert report.members == whole.members
    assert report.replicas == whole.replicas
    assert (report.first_step, report.last_step, report.total) == (whole.first_step, whole.last_step, whole.total)
    ours, theirs = report.account, whole.account
    assert (ours.num_steps, ours.num_samples, ours.num_redone) == (
        theirs.num_steps,
        theirs.num_samples,
        theirs.num_redone,
    )
    assert ours.wall_s == theirs.wall_s
    assert ours.good_s == pytest.approx(theirs.good_s)
    assert ours.losses == pytest.approx(theirs.losses)
    assert ours.mean_replicas == pytest.approx(theirs.mean_replicas)

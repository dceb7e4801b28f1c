"""One event as one line: what a record must survive is a kill in the middle of a line, and numbers JSON has not."""

from __future__ import annotations

import json
import math

import pytest

from multiworld.errors import MessageError
from multiworld.training.events import MembershipChanged, PipelinesChanged, StepCommitted, TrainingEvent
from multiworld.training.view.lines import TRAINING_EVENTS, event_of, line_of, merged, read_lines

from .runs import Run


def step(**changes: object) -> StepCommitted:
    said: dict[str, object] = {
        "job": "gpt",
        "member": "m1",
        "rank": 0,
        "generation": 1,
        "at": 5.0,
        "step": 3,
        "values": {"loss": 2.5},
        "num_samples": 64,
        "replicas": 4,
        "took_s": 0.05,
        "seconds": {"forward": 0.02},
    }
    return StepCommitted(**{**said, **changes})  # type: ignore[arg-type]  # as the kind takes them


def test_each_kind_of_event_comes_back_as_it_was() -> None:
    events = Run().steps(2).lose(1).join(1).end().in_order()

    assert [event_of(line_of(event)) for event in events] == events
    assert {type(event) for event in events} <= set(TRAINING_EVENTS.classes)
    assert TrainingEvent not in TRAINING_EVENTS.classes


def test_a_line_says_its_kind_and_ends_with_a_newline() -> None:
    line = line_of(step())

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["event"] == "step_committed"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_kept(wrong: float) -> None:
    line = line_of(step(values={"loss": wrong, "lr": 0.1}, took_s=math.inf))
    read = event_of(line)

    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(read, StepCommitted)
    assert read.values["lr"] == 0.1
    assert repr(read.values["loss"]) == repr(wrong)
    assert read.took_s == math.inf


def test_a_last_line_that_a_kill_cut_off_is_left_out() -> None:
    data = line_of(step()) + line_of(step(step=4))
    read = read_lines(data[:-10])

    assert [event.step for event in read.events if isinstance(event, StepCommitted)] == [3]
    assert read.is_cut
    assert read.num_damaged == 0


def test_damaged_lines_are_counted_and_the_others_are_read() -> None:
    read = read_lines(b'{"event":"unheard of"}\n' + line_of(step()) + b"\n\x00\xff\n" + line_of(step(step=4)))

    assert len(read.events) == 2
    assert read.num_damaged == 2
    assert not read.is_cut


def test_a_field_of_a_later_release_is_skipped() -> None:
    said = {**json.loads(line_of(step())), "later": 1, "non_finite": {"values.loss": "7", "unknown": "nan", "rank": 3}}

    assert event_of(json.dumps(said).encode()) == step()


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(MessageError):
        event_of(b"[]")


def test_members_are_merged_by_time_and_each_keeps_its_order() -> None:
    mine = [step(at=1.0), step(at=0.5, step=4), step(at=3.0, step=5)]
    other = MembershipChanged(job="gpt", member="m2", rank=1, generation=1, at=2.0, step=3, ranks=(0, 1))

    assert merged([mine, [other]]) == [mine[0], mine[1], other, mine[2]]


def test_pipelines_are_a_line_of_the_record() -> None:
    (event,) = (
        each for each in Run(num_members=2, has_pipelines=True).events["m001"] if isinstance(each, PipelinesChanged)
    )
    assert event_of(line_of(event)) == event

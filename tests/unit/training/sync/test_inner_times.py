"""What members tell of their inner steps, and how it is read step by step."""

from __future__ import annotations

from multiworld.training.engine.facts import Facts
from multiworld.training.sync.inner_times import by_part, facts_of_steps


def test_seconds_are_told_by_part_without_what_is_no_work_of_the_member() -> None:
    steps = [{"data": 0.1, "wait": 3.0}, {"data": 0.2, "forward": 0.30000049}]
    assert by_part(steps, ("wait",)) == {"data": (0.1, 0.2), "forward": (0.0, 0.3)}
    assert by_part([], ()) == {}


def test_the_last_steps_that_all_tell_of_are_compared_oldest_first() -> None:
    facts = [
        Facts(step=3, done=(0, 1), inner_seconds={"data": (9.0, 0.1, 0.2)}),
        Facts(step=3, done=(2,), inner_seconds={"data": (0.3, 0.4), "forward": (0.5, 0.6)}),
        Facts(step=3, is_ready=False),  # a newcomer without a share
    ]
    seconds = [[dict(each.seconds) for each in step] for step in facts_of_steps(facts)]
    assert seconds == [
        [{"data": 0.1}, {"data": 0.3, "forward": 0.5}, {}],
        [{"data": 0.2}, {"data": 0.4, "forward": 0.6}, {}],
    ]
    assert next([each.done for each in step] for step in facts_of_steps(facts)) == [(0, 1), (2,), ()]


def test_a_round_in_which_nobody_computed_has_no_steps() -> None:
    assert list(facts_of_steps([Facts(step=0), Facts(step=0)])) == []

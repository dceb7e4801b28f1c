"""Which schedules pipelines may have."""

from __future__ import annotations

import pytest

from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.scheduling import may_split, schedules_named
from multiworld.training.planning.template import Schedule


def profile(weight_s: float) -> Profile:
    layer = LayerCost(name="0", forward_s=1.0, backward_s=2.0, weight_backward_s=weight_s)
    return Profile(model="m", micro_batch=1, layers=(layer,))


def test_a_schedule_that_there_is_not_is_refused() -> None:
    assert schedules_named("1f1b") == (Schedule.ONE_F_ONE_B,)
    with pytest.raises(ValueError, match=r"schedule='gpipe': expected one of 'auto', '1f1b', 'zero-bubble'"):
        schedules_named("gpipe")


def test_a_backward_is_split_where_it_may_be_and_where_that_puts_off_enough() -> None:
    assert may_split("auto", profile(1.0))
    assert may_split("zero-bubble", profile(1.0))
    assert not may_split("1f1b", profile(1.0))
    assert not may_split("auto", profile(0.1))

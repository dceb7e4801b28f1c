"""Which steps are bad."""

from __future__ import annotations

import math

import pytest

from multiworld.training.health.bad_steps import BadSteps, LossSpike


def with_history(spike: LossSpike | None = None) -> BadSteps:
    steps = BadSteps(spike or LossSpike())
    for number in range(40):
        assert steps.heard({"loss": 2.0 + 0.01 * (number % 5)}, ()) is None
    return steps


def test_gradients_that_are_not_finite_are_bad_and_the_ranks_named() -> None:
    bad = BadSteps(None).heard({"loss": 1.0}, (1, 3))
    assert bad is not None
    assert "ranks 1, 3" in bad.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_recorded_value_that_is_not_finite_is_bad(value: float) -> None:
    bad = BadSteps(None).heard({"accuracy": 1.0, "loss": value}, ())
    assert bad is not None
    assert f"loss is {value}" in bad.reason


def test_a_loss_far_above_those_before_is_a_spike() -> None:
    bad = with_history().heard({"loss": 4.0}, ())
    assert bad is not None
    assert bad.value == 4.0
    assert "where it was 2.02 before" in bad.reason


def test_a_loss_that_rises_a_little_or_falls_is_none() -> None:
    steps = with_history()
    assert steps.heard({"loss": 2.4}, ()) is None
    assert steps.heard({"loss": 0.1}, ()) is None


def test_bad_steps_do_not_move_what_is_usual() -> None:
    steps = with_history()
    assert all(steps.heard({"loss": 9.0}, ()) for _ in range(200))
    assert steps.heard({"loss": 2.0}, ()) is None


def test_bad_steps_in_a_row_are_counted() -> None:
    steps = with_history()
    for value in (9.0, 9.0, math.nan):
        steps.heard({"loss": value}, ())
    assert steps.num_in_a_row == 3
    steps.heard({"loss": 2.0}, ())
    assert steps.num_in_a_row == 0


def test_the_first_steps_are_no_spikes() -> None:
    steps = BadSteps(LossSpike())
    assert [steps.heard({"loss": 10.0 ** (number % 3)}, ()) for number in range(16)] == [None] * 16


def test_a_newcomer_with_the_history_decides_alike() -> None:
    steps, newcomer = with_history(), BadSteps(LossSpike())
    newcomer.take_history(*steps.history())
    assert newcomer.heard({"loss": 2.6}, ()) == steps.heard({"loss": 2.6}, ()) is not None


def test_values_with_other_names_are_not_watched() -> None:
    assert with_history(LossSpike(watch="perplexity")).heard({"loss": 1e9}, ()) is None


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="deviations"):
        LossSpike(deviations=0)
    with pytest.raises(ValueError, match="least"):
        LossSpike(least=100)

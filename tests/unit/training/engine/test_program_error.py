"""What the others hear when a program raises in a step, and when the step is given up."""

from __future__ import annotations

from typing import cast

import pytest

from multiworld.training.data.base import StepLoader
from multiworld.training.engine.program_error import MAX_TEXT, MAX_TRIES, tell_others
from multiworld.training.errors import LoaderWorkerError, PoisonedStepError, SampleError

from .fake_team import FakeTeam


class TwoSamples:
    def samples(self, step: int) -> list[list[str]]:
        return [[f"{step}.0"], [f"{step}.1"]]


LOADER = cast(StepLoader, TwoSamples())


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_the_others_hear_the_error_with_its_traceback_and_this_world_ends() -> None:
    team = FakeTeam()
    tell_others(team.as_team(), LOADER, 3, raised(ValueError("bad sample")))
    (said,) = team.membership.raised
    assert (said.step, said.raised) == (3, "ValueError: bad sample")
    assert "in raised" in said.traceback
    assert team.world.was_aborted


def test_an_error_in_a_recovery_that_formed_no_world_is_told_all_the_same() -> None:
    team = FakeTeam()
    team.stands = False
    tell_others(team.as_team(), LOADER, 3, raised(ValueError("bad sample")))
    assert [said.raised for said in team.membership.raised] == ["ValueError: bad sample"]
    assert not team.world.was_aborted


def test_a_long_traceback_says_what_is_left_out() -> None:
    team = FakeTeam()
    tell_others(team.as_team(), LOADER, 3, raised(ValueError("x" * MAX_TEXT)))
    (said,) = team.membership.raised
    assert said.traceback.startswith("... ")
    assert "characters left out" in said.traceback


def test_a_step_in_which_programs_raise_again_and_again_is_poisoned() -> None:
    team = FakeTeam()
    for _ in range(MAX_TRIES - 1):
        tell_others(team.as_team(), LOADER, 3, raised(ValueError("bad sample")))
    with pytest.raises(PoisonedStepError) as poisoned:
        tell_others(team.as_team(), LOADER, 3, raised(ValueError("bad sample")))
    assert poisoned.value.samples == ("3.0", "3.1")


@pytest.mark.parametrize(
    "error",
    [
        SampleError(3, 1, ("3.1",), "ValueError: bad", ""),
        LoaderWorkerError("Its workers were killed three times.", ("3.1",)),
    ],
)
def test_an_error_that_names_its_samples_is_believed(error: Exception) -> None:
    team = FakeTeam()
    for _ in range(MAX_TRIES - 1):
        tell_others(team.as_team(), LOADER, 3, raised(error))
    with pytest.raises(PoisonedStepError) as poisoned:
        tell_others(team.as_team(), LOADER, 3, raised(error))
    assert poisoned.value.samples == ("3.1",)

"""The phases of a job: what may follow what."""

from __future__ import annotations

import pickle

import pytest

from multiworld.elastic.job.phase import Phase, PhaseChange, advance
from multiworld.wire.transitions import InvalidTransitionError


def test_a_job_that_is_over_stays_so() -> None:
    for change in PhaseChange:
        with pytest.raises(InvalidTransitionError):
            advance(Phase.OVER, change)


def test_from_each_phase_a_job_can_end() -> None:
    ends, found = {Phase.OVER}, 0
    while len(ends) > found:
        found = len(ends)
        ends |= {phase for phase in Phase if any(_after(phase, change) in ends for change in PhaseChange)}
    assert ends == set(Phase)


def test_a_change_that_is_not_in_the_table_is_told_with_its_phase() -> None:
    with pytest.raises(InvalidTransitionError, match="a job that is gathering cannot change by 'stop'") as caught:
        advance(Phase.GATHERING, PhaseChange.STOP)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.state, again.change) == (Phase.GATHERING, PhaseChange.STOP)


def _after(phase: Phase, change: PhaseChange) -> Phase | None:
    try:
        return advance(phase, change)
    except InvalidTransitionError:
        return None

"""What a member knows of states on their way."""

from __future__ import annotations

from typing import Any

import pytest

from multiworld.errors import WorldClosedError
from multiworld.training.engine.transfers import Transfers
from multiworld.training.recovery.transfer import DamagedStateError
from multiworld.training.state import TrainingState

from .fake_team import FakeTeam


class Arriving:
    """A state that is here after ``wait``. ``error``: what becomes of it instead."""

    num_sources, took_s = 2, 0.5

    def __init__(self, state: TrainingState, error: Exception | None = None) -> None:
        self.sent, self.error, self.is_here = state, error, False

    def poll(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.is_here

    def wait(self) -> None:
        self.is_here = True

    def state(self, templates: Any) -> tuple[Any, int]:
        return self.sent.capture(), 40


class Leaving:
    def __init__(self) -> None:
        self.is_done = False
        self.num_waits = 0

    def wait(self) -> None:
        self.num_waits += 1


def at_step(step: int) -> TrainingState:
    state = TrainingState()
    state.step = step
    return state


def test_a_state_is_taken_once_it_has_come() -> None:
    own = at_step(3)
    heard = []

    def received(step: int, size_bytes: int, sources: int, took_s: float) -> None:
        heard.append((step, size_bytes, sources, took_s))

    transfers, arriving = Transfers(FakeTeam().as_team(), own, received), Arriving(at_step(7))
    assert not transfers.has_come(arriving)
    assert transfers.has_come(arriving, wait=True)
    transfers.take(arriving)
    assert (own.step, heard) == (7, [(7, 40, 2, 0.5)])


def test_a_state_has_come_when_all_processes_of_the_replica_have_it() -> None:
    team = FakeTeam()
    team.replica.others = [True, False]  # nobody has an error, another process waits still
    assert not Transfers(team.as_team(), at_step(0)).has_come(Arriving(at_step(7)), wait=True)


def test_a_damaged_state_ends_the_world() -> None:
    team = FakeTeam()
    with pytest.raises(DamagedStateError):
        Transfers(team.as_team(), at_step(0)).has_come(Arriving(at_step(7), DamagedStateError(1, 1)))
    assert team.world.was_aborted


def test_an_error_in_another_process_of_the_replica_ends_the_world_here() -> None:
    team = FakeTeam()
    team.replica.others = [False]
    with pytest.raises(WorldClosedError):
        Transfers(team.as_team(), at_step(0)).has_come(Arriving(at_step(7)), wait=True)
    assert team.world.was_aborted


def test_only_what_is_under_way_is_waited_for() -> None:
    transfers, sent, under_way = Transfers(FakeTeam().as_team(), at_step(0)), Leaving(), Leaving()
    for each in (sent, under_way):
        transfers.send(each)
    sent.is_done = True
    transfers.forget_sent()
    transfers.wait_until_sent()
    assert (sent.num_waits, under_way.num_waits) == (0, 1)
    transfers.clear()
    transfers.wait_until_sent()
    assert under_way.num_waits == 1

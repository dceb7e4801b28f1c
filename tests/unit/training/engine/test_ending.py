"""Whether members wait at the end of a training, and what they say."""

from __future__ import annotations

from multiworld.errors import PeerDiedError
from multiworld.training.engine.ending import Ending
from multiworld.training.engine.transfers import Transfers
from multiworld.training.state import TrainingState

from .fake_team import FakeTeam


class LostSending:
    """Its newcomer has died."""

    is_done = False

    def wait(self) -> None:
        raise PeerDiedError("t.1", 1, 1, "its socket closed")


def ending_of(team: FakeTeam, num_wanted: int) -> tuple[Ending, Transfers]:
    transfers = Transfers(team.as_team(), TrainingState())
    return Ending(team.as_team(), transfers, lambda: num_wanted), transfers


def test_nobody_waits_if_all_are_there() -> None:
    team = FakeTeam("a", "b")
    team.membership.come = [("late",)]
    ending, _ = ending_of(team, 2)
    assert ending.wait_for_missing() == ()
    assert team.membership.come  # it did not even look


def test_who_comes_back_is_returned_at_once() -> None:
    team = FakeTeam("a", "b")
    team.membership.come = [(), ("c",)]
    ending, _ = ending_of(team, 3)
    assert ending.wait_for_missing() == ("c",)


def test_nobody_waits_for_longer_than_the_time_that_a_replacement_takes() -> None:
    ending, _ = ending_of(FakeTeam("a", "b"), 3)
    assert ending.wait_for_missing(linger_s=0.0) == ()


def test_nobody_waits_in_a_world_that_is_broken() -> None:
    team = FakeTeam("a", "b")
    team.stands = False
    ending, _ = ending_of(team, 3)
    assert ending.wait_for_missing() == ()


def test_the_training_is_over_even_if_a_newcomer_dies_before_it_has_the_state() -> None:
    team = FakeTeam("a", "b")
    ending, transfers = ending_of(team, 2)
    transfers.send(LostSending())
    ending.hand_over(20)
    assert team.membership.over == 20

"""What members of a world tell of inputs that they lack is kept until the collective has ended here."""

from __future__ import annotations

from multiworld.remote.node.lacking import Lacking
from multiworld.remote.protocol.messages import Failed

FIRST, SECOND = (Failed(stream=0, position=at, kind="IndexError", text=f"failure {at}") for at in (1, 2))


def test_each_collective_has_what_was_told_of_it_by_rank() -> None:
    lacking = Lacking()
    lacking.note(1, 2, SECOND)  # of a member that is ahead
    lacking.note(0, 1, FIRST)
    lacking.note(0, 2, SECOND)
    assert lacking.ended(0) == {1: FIRST, 2: SECOND}
    assert lacking.ended(1) == {2: SECOND}
    assert lacking.ended(2) == {}


def test_what_is_told_of_a_collective_that_has_ended_is_not_kept() -> None:
    lacking = Lacking()
    lacking.note(0, 1, FIRST)
    assert lacking.ended(1) == {}
    lacking.note(0, 1, FIRST)
    lacking.note(1, 1, FIRST)
    assert lacking.ended(0) == lacking.ended(1) == {}

"""Several operations as one: it ends when all have ended."""

from __future__ import annotations

import pytest

from multiworld.wire.progress.operation import Operation
from multiworld.world.operations.several import start_all, together


def test_it_is_done_when_the_last_one_is() -> None:
    parts: list[Operation[None]] = [Operation(), Operation()]
    whole = together(parts)
    parts[1].succeed(None)
    assert not whole.done
    parts[0].succeed(None)
    assert whole.done
    assert whole.error is None
    assert together([]).done


def test_it_fails_with_the_first_error_when_nothing_is_under_way_any_more() -> None:
    parts: list[Operation[None]] = [Operation(), Operation(), Operation()]
    whole = together(parts)
    parts[2].fail(ValueError("late"))
    parts[0].fail(ValueError("early"))
    assert not whole.done
    parts[1].succeed(None)
    assert str(whole.error) == "early"


def test_cancelling_it_cancels_all() -> None:
    parts: list[Operation[None]] = [Operation(), Operation()]
    whole = together(parts)
    given_up = ValueError("given up")
    assert whole.cancel(given_up)
    assert whole.error is given_up
    assert all(part.error is not None for part in parts)


def test_what_was_started_does_not_go_on_if_the_next_cannot_be_started() -> None:
    part: Operation[None] = Operation()

    def refuse() -> Operation[None]:
        raise TypeError("no")

    with pytest.raises(TypeError, match="no"):
        start_all([lambda: part, refuse])
    assert part.error is not None


def test_it_is_slow_to_cancel_if_one_of_them_is() -> None:
    parts: list[Operation[None]] = [Operation(), Operation()]
    parts[1].slow_cancel = True
    assert together(parts).slow_cancel

"""CollectiveRounds: when the first so many collectives of a world are over."""

from __future__ import annotations

from multiworld.world.operations.rounds import CollectiveRounds


def test_none_are_over_at_once() -> None:
    assert CollectiveRounds().over(0).done


def test_those_that_have_not_started_are_waited_for() -> None:
    rounds = CollectiveRounds()
    over = rounds.over(2)
    rounds.end(rounds.start())
    assert not over.done
    second = rounds.start()
    assert not over.done
    rounds.end(second)
    assert over.done


def test_they_may_end_in_any_order_and_later_ones_do_not_count() -> None:
    rounds = CollectiveRounds()
    first, second, _third = rounds.start(), rounds.start(), rounds.start()
    assert rounds.num_started == 3
    over = rounds.over(2)
    rounds.end(second)
    assert not over.done
    rounds.end(first)
    assert over.done
    assert rounds.over(2).done
    assert not rounds.over(3).done

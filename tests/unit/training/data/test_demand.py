"""What workers begin next."""

from __future__ import annotations

from multiworld.training.data.demand import Demand, Wanted


def begun(demand: Demand, count: int) -> list[tuple[int, int] | None]:
    return [demand.begin() for _ in range(count)]


def test_what_is_asked_for_comes_first_then_the_same_share_of_the_next_steps() -> None:
    demand = Demand(None)
    demand.ask(3, [4, 5])
    assert begun(demand, 5) == [(3, 4), (3, 5), (4, 4), (4, 5), (5, 4)]


def test_nothing_is_begun_after_the_last_step() -> None:
    demand = Demand(num_steps=4)
    demand.ask(3, [0])
    assert begun(demand, 2) == [(3, 0), None]


def test_nothing_is_begun_before_anything_is_known() -> None:
    assert Demand(None).begin() is None


def test_what_is_expected_comes_before_what_is_guessed() -> None:
    demand = Demand(None)
    demand.ask(0, [0, 1])
    demand.expect(1, [2])
    assert begun(demand, 5) == [(0, 0), (0, 1), (1, 2), (2, 2), (3, 2)]


def test_expectation_alone_is_enough_to_begin() -> None:
    demand = Demand(None)
    demand.expect(7, [1])
    assert begun(demand, 2) == [(7, 1), (8, 1)]


def test_a_lost_members_share_is_no_share_of_the_next_steps() -> None:
    demand = Demand(None)
    demand.ask(0, [0, 1])
    assert begun(demand, 3) == [(0, 0), (0, 1), (1, 0)]
    demand.ask(0, [6])
    assert begun(demand, 3) == [(0, 6), (1, 1), (2, 0)]


def test_a_grown_share_keeps_what_was_begun() -> None:
    demand = Demand(None)
    demand.ask(0, [0])
    assert begun(demand, 2) == [(0, 0), (1, 0)]
    assert demand.finish(Wanted(0, 0))
    assert demand.finish(Wanted(1, 0))
    demand.take(Wanted(0, 0))
    demand.ask(1, [0, 1])
    assert begun(demand, 2) == [(1, 1), (2, 0)]


def test_what_arrives_too_late_is_dropped() -> None:
    demand = Demand(None)
    demand.ask(0, [0])
    assert begun(demand, 1) == [(0, 0)]
    demand.ask(1, [0])
    assert not demand.finish(Wanted(0, 0))


def test_what_was_taken_can_be_asked_for_again() -> None:
    demand = Demand(None)
    demand.ask(0, [0])
    assert begun(demand, 1) == [(0, 0)]
    demand.finish(Wanted(0, 0))
    demand.take(Wanted(0, 0))
    demand.ask(0, [0])
    assert begun(demand, 1) == [(0, 0)]


def test_what_dead_workers_had_is_begun_again_in_its_place() -> None:
    demand = Demand(None)
    demand.ask(0, [0, 1])
    assert begun(demand, 3) == [(0, 0), (0, 1), (1, 0)]
    demand.finish(Wanted(0, 1))
    demand.give_back([Wanted(0, 0), Wanted(1, 0)])
    assert begun(demand, 2) == [(0, 0), (1, 0)]

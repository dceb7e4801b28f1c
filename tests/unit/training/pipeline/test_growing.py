"""Who goes on as before while newcomers get layers, which layers these are, and how many of them in a step."""

from __future__ import annotations

from dataclasses import replace

from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment, LayerMove
from multiworld.training.pipeline.growing import PREFETCH, SHARE, Deliveries, Pace, is_prefetched, kept, kept_layers

BEFORE = Assignment(
    num_layers=4,
    pipelines=(AssignedPipeline(members=("a", "b"), starts=(0, 2), num_micro_batches=4, max_in_flight=(2, 1)),),
    policy="borrow",
)
COMING = Assignment(
    num_layers=4,
    pipelines=(
        AssignedPipeline(members=("a", "b", "c"), starts=(0, 1, 3), num_micro_batches=4, max_in_flight=(3, 2, 1)),
    ),
)
HELD = {"a": frozenset({0, 1}), "b": frozenset({2, 3})}
MOVES = [
    LayerMove(first=1, end=2, source="a", destination="b"),
    LayerMove(first=3, end=4, source="b", destination="c"),
    LayerMove(first=0, end=1, source="a", destination="c"),
]


def test_who_computes_stays_and_newcomers_wait() -> None:
    moved = replace(BEFORE, moves=tuple(MOVES))
    assert kept(moved, ["a", "b", "c"], HELD) == replace(BEFORE, idle=("c",), policy=PREFETCH)


def test_nobody_stays_as_before_if_one_is_lost_or_has_not_its_layers() -> None:
    assert kept(BEFORE, ["a", "c"], {"a": HELD["a"]}) is None
    assert kept(BEFORE, ["a", "b", "c"], {**HELD, "b": frozenset({2})}) is None


def test_a_newcomer_that_was_lost_is_not_waited_for() -> None:
    waiting = replace(BEFORE, idle=("c",))
    assert kept(waiting, ["a", "b"], HELD) == replace(BEFORE, idle=(), policy=PREFETCH)


def test_what_no_assignment_gives_a_member_is_not_sent_by_it() -> None:
    """It came for an assignment that is given up, so the member drops it."""
    held = {**HELD, "c": frozenset({0, 2, 3})}
    coming = {"a": frozenset({0}), "b": frozenset({1, 2}), "c": frozenset({3})}
    assert kept_layers(BEFORE, coming, held) == {**HELD, "c": {3}}


def test_the_coming_assignment_is_taken_up_by_its_members_once_all_have_their_layers() -> None:
    has = {"a": frozenset({0, 1}), "b": frozenset({1, 2, 3}), "c": frozenset({3})}
    assert is_prefetched(COMING, ["c", "b", "a"], has)
    assert not is_prefetched(COMING, ["a", "b", "c"], {**has, "c": frozenset()})
    assert not is_prefetched(COMING, ["a", "b", "c", "d"], has)
    assert not is_prefetched(COMING, ["a", "b"], has)


def test_all_hear_what_was_begun_in_each_step() -> None:
    deliveries = Deliveries(MOVES, ["a", "b", "c"])
    assert deliveries.left("a") == [MOVES[0], MOVES[2]]
    assert deliveries.hear([1, 0, 0]) == [MOVES[0]]
    assert deliveries.left("a") == [MOVES[2]]
    assert deliveries.hear([2, 1, 0]) == [MOVES[2], MOVES[1]]
    assert deliveries.left("a") == deliveries.left("b") == []
    assert deliveries.hear([2, 1, 0]) == []


def test_as_much_is_sent_as_fits_into_the_shortest_step() -> None:
    pace = Pace()
    pace.step_begins(10.0)
    assert pace.most_bytes == 0.0
    pace.sent(1000, 2.0)
    pace.step_begins(13.0)
    assert pace.most_bytes == SHARE * 500 * 3.0
    pace.step_begins(33.0)  # it waited for what was sent
    assert pace.most_bytes == SHARE * 500 * 3.0

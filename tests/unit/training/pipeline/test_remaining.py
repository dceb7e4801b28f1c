"""What survives of a step, who has it then, and who computes the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment, LayerMove
from multiworld.training.pipeline.partial_step import (
    HandedSums,
    LayerSums,
    PartialStep,
    Remaining,
    Span,
    numbers_of,
    read,
    spans_of,
    written,
)
from multiworld.training.pipeline.remaining import StepShares, divide, remaining_of


def assignment(*pipelines: tuple[Sequence[str], Sequence[int], int], moves: Sequence[LayerMove] = ()) -> Assignment:
    """Return one of four layers; each pipeline: its members, where they begin, its micro-batches."""
    return Assignment(
        num_layers=4,
        pipelines=tuple(
            AssignedPipeline(
                members=tuple(members), starts=tuple(starts), num_micro_batches=count, max_in_flight=(1,) * len(members)
            )
            for members, starts, count in pipelines
        ),
        moves=tuple(moves),
    )


def has(sums: Mapping[int, Sequence[int]], begun: Sequence[int] = ()) -> PartialStep:
    return PartialStep(sums=written({layer: set(each) for layer, each in sums.items()}), begun=spans_of(begun))


def everywhere(layers: Sequence[int], numbers: Sequence[int]) -> dict[int, Sequence[int]]:
    return dict.fromkeys(layers, numbers)


def planned(assigned: Assignment, said: Mapping[str, PartialStep], together: Sequence[Sequence[int]] = ()) -> Remaining:
    remaining = remaining_of(assigned, said, together=together)
    assert remaining is not None
    return remaining


def test_layers_with_the_same_sums_are_written_together() -> None:
    sums = {0: {0, 1, 5}, 1: {5, 1, 0}, 2: {0}, 3: set[int](), 4: {0}}
    entries = written(sums)
    assert entries == (
        LayerSums(first=0, end=2, micro_batches=(Span(0, 2), Span(5, 6))),
        LayerSums(first=2, end=3, micro_batches=(Span(0, 1),)),
        LayerSums(first=4, end=5, micro_batches=(Span(0, 1),)),
    )
    assert read(entries) == {layer: each for layer, each in sums.items() if each}


def test_what_an_unbroken_pipeline_has_is_not_computed_again() -> None:
    """``x`` of the first pipeline was lost; ``y`` has its place and nothing."""
    now = assignment((["a", "y"], [0, 2], 3), (["c", "d"], [0, 2], 3))
    said = {
        "a": has(everywhere([0, 1], [0]), begun=[0, 1, 2]),
        "c": has(everywhere([0, 1], [3, 4]), begun=[3, 4, 5]),
        "d": has(everywhere([2, 3], [3, 4, 5]), begun=[3, 4, 5]),
    }
    remaining = remaining_of(now, said, of_lost=[0, 1, 2])
    assert remaining is not None
    assert remaining.handed == ()
    assert list(map(numbers_of, remaining.computed)) == [(0, 1), (2, 5)]
    assert remaining.num_redone == 4
    shares = StepShares(now, remaining)
    assert [sorted(shares.of(each, [0])) for each in ("a", "c")] == [[0, 1], [2, 3, 4, 5]]  # a has its own 0 still
    assert [sorted(shares.of(each, [3])) for each in ("y", "d")] == [[0, 1], [2, 3, 4, 5]]  # and d its 5
    assert sorted(shares.present(3)) == [3, 4, 5]


def test_a_sum_goes_with_its_layer_to_the_one_who_gets_that() -> None:
    moves = [LayerMove(first=1, end=2, source="c", destination="d")]
    now = assignment((["c", "d"], [0, 1], 4), moves=moves)
    remaining = planned(now, {"c": has(everywhere([0, 1], [0, 1])), "d": has(everywhere([2, 3], [0, 1, 2]))})
    assert remaining.kept == {"c": written({0: {0, 1}}), "d": written({2: {0, 1, 2}, 3: {0, 1, 2}})}
    assert remaining.handed == (HandedSums(source="c", destination="d", sums=written({1: {0, 1}})),)
    assert remaining.computed == ((Span(2, 4),),)


def test_a_sum_of_a_layer_that_others_have_already_goes_to_one_of_these() -> None:
    now = assignment((["c", "d"], [0, 2], 4))
    remaining = planned(now, {"idle": has(everywhere([0, 1], [0])), "c": has(everywhere([0, 1], [1]))})
    assert [(each.source, each.destination) for each in remaining.handed] == [("idle", "c")]
    assert StepShares(now, remaining).begun_with("c") == {0: {0, 1}, 1: {0, 1}}


def test_of_two_sums_with_the_same_micro_batch_the_larger_one_counts() -> None:
    now = assignment((["c"], [0], 2), (["d"], [0], 2))
    remaining = planned(now, {"c": has(everywhere(range(4), [0])), "d": has(everywhere(range(4), [0, 1]))})
    assert set(remaining.kept) == {"d"}
    assert [number for spans in remaining.computed for number in numbers_of(spans)] == [2, 3]


def test_all_members_know_alike_whether_anything_is_kept() -> None:
    now = assignment((["c", "d"], [0, 2], 2), (["e", "f"], [0, 2], 2))
    of_last_layers = planned(now, {"c": has({}, begun=[0]), "d": has(everywhere([2, 3], [0]), begun=[0])})
    shares = StepShares(now, of_last_layers)
    assert shares.present(0) == frozenset()  # c, which has this layer, reduces otherwise in this step all the same
    assert shares.keeps_any
    assert not StepShares(now, planned(now, {"c": has({}, begun=[0])})).keeps_any
    assert not StepShares(now, None).keeps_any


def test_nothing_remains_of_a_step_that_nobody_began() -> None:
    now = assignment((["c", "d"], [0, 2], 4))
    assert remaining_of(now, {"c": has({}), "d": has({})}) is None
    begun = planned(now, {"c": has({}, begun=[0, 1])})
    assert (begun.kept, begun.computed, begun.num_redone) == ({}, ((Span(0, 4),),), 2)


def test_layers_of_one_stage_with_one_gradient_have_the_same_micro_batches() -> None:
    """The first and the last layer are tied. Micro-batch 1 is in the sum of the last one only."""
    said = {"c": has(everywhere([0, 1], [0])), "d": has(everywhere([2, 3], [0, 1]))}
    apart = planned(assignment((["c", "d"], [0, 2], 2)), said, together=[(0, 3)])
    assert apart.computed == ((Span(1, 2),),)
    assert apart.kept["d"] == written({2: {0, 1}, 3: {0, 1}})
    # e computes both at once, so it could not add micro-batch 1 to one of them only
    joined = planned(assignment((["c", "d"], [0, 2], 1), (["e"], [0], 1)), said, together=[(0, 3)])
    assert joined.kept == {"c": written({1: {0}}), "d": written({2: {0, 1}})}
    assert [number for spans in joined.computed for number in numbers_of(spans)] == [0, 1]


@pytest.mark.parametrize(("of_last", "is_kept"), [([0], True), ([0, 1], False)])
def test_one_sum_of_two_layers_stays_whole_or_is_void(of_last: list[int], is_kept: bool) -> None:
    said = {"c": has({**everywhere([0, 1, 2], [0]), 3: of_last})}
    kept = planned(assignment((["c"], [0], 2)), said, together=[(0, 3)]).kept["c"]
    assert (0 in read(kept)) == (3 in read(kept)) == is_kept
    divided = planned(assignment((["c", "d"], [0, 2], 2)), said, together=[(0, 3)])
    given = [each.sums for each in divided.handed]
    assert {layer for sums in (*given, divided.kept["c"]) for layer in read(sums)} == {1, 2}


@pytest.mark.parametrize(
    ("how_many", "usual", "counts"),
    [(8, [5, 3], [5, 3]), (3, [5, 3], [2, 1]), (1, [3, 5], [0, 1]), (0, [3, 5], [0, 0]), (4, [1, 1, 6], [0, 0, 4])],
)
def test_what_is_left_is_divided_as_a_whole_step_is(how_many: int, usual: list[int], counts: list[int]) -> None:
    shares = divide(range(10, 10 + how_many), usual)
    assert [len(each) for each in shares] == counts
    assert [number for each in shares for number in each] == list(range(10, 10 + how_many))

"""Who holds which layers, and who computes which micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment, LayerMove, without_last_owners
from multiworld.training.pipeline.moving import Shipment, shipments
from multiworld.training.pipeline.owners import Owned, owned_by
from multiworld.training.planning.plan import LOST

TWO = Assignment(
    num_layers=6,
    pipelines=(
        AssignedPipeline(members=("a", "b"), starts=(0, 3), num_micro_batches=5, max_in_flight=(2, 1)),
        AssignedPipeline(members=("c", "d", "e"), starts=(0, 2, 5), num_micro_batches=3, max_in_flight=(3, 2, 1)),
    ),
)
PLACES = {name: place for place, name in enumerate("abcde")}


def test_a_role_says_layers_and_who_reads_data() -> None:
    role, first, last = map(TWO.role_of, "dab")
    assert role is not None
    assert first is not None
    assert last is not None
    assert (role.pipeline, role.stage, role.num_stages, role.layers) == (1, 1, 3, (2, 3, 4))
    assert (role.reads, first.reads, last.reads) == (False, True, True)


def test_a_member_may_have_nothing_to_do() -> None:
    assert TWO.role_of("x") is None
    assert TWO.layers_of("x") == ()
    assert TWO.members == ("a", "b", "c", "d", "e")


def test_every_layer_has_one_owner_in_each_pipeline() -> None:
    assert [TWO.owners(layer) for layer in range(6)] == [
        ("a", "c"),
        ("a", "c"),
        ("a", "d"),
        ("b", "d"),
        ("b", "d"),
        ("b", "e"),
    ]


def test_a_lost_member_owns_nothing() -> None:
    whole, broken = TWO.pipelines
    lost = replace(TWO, pipelines=(whole, replace(broken, members=("c", LOST, "e"))))
    assert [lost.owners(layer) for layer in (1, 3, 5)] == [("a", "c"), ("b",), ("b", "e")]
    assert (lost.members, lost.role_of(LOST)) == (("a", "b", "c", "e"), None)
    assert without_last_owners(lost, ["b", "c"]) == ["c"]


def test_tied_weights_are_owned_by_all_that_have_one_of_their_layers() -> None:
    assert TWO.owners_of_all([0, 5]) == ("a", "c", "b", "e")


def owned(
    uses: Mapping[str, tuple[list[int], list[int]]], buffers: Mapping[str, list[int]] | None = None
) -> list[Owned]:
    return owned_by(TWO, PLACES.__getitem__, uses, buffers or {})


def test_what_a_member_holds_is_divided_by_owners_alike_on_all_of_them() -> None:
    embedding, one, two = ([0, 5], [0, 5]), ([1], [1]), ([2], [2])
    tied = Owned(owners=(0, 1, 2, 4), computing=(0, 1, 2, 4), uses=("embedding",), buffers=())
    of_one = Owned(owners=(0, 2), computing=(0, 2), uses=("one",), buffers=("mean",))
    assert owned({"embedding": embedding, "one": one, "two": two}, {"mean": [1]}) == [
        tied,
        of_one,
        Owned(owners=(0, 3), computing=(0, 3), uses=("two",), buffers=()),
    ]
    assert owned({"embedding": embedding, "one": one}, {"mean": [1]}) == [tied, of_one]


def test_uses_of_tied_weights_have_the_same_owners_and_are_computed_by_some_of_them() -> None:
    found = owned({"embedding": ([0, 5], [0]), "embedding@5": ([0, 5], [5])})
    assert [(each.owners, each.computing, each.uses) for each in found] == [
        ((0, 1, 2, 4), (0, 2), ("embedding",)),
        ((0, 1, 2, 4), (1, 4), ("embedding@5",)),
    ]


def test_a_newcomer_gets_layers_from_each_source_and_the_rest_from_the_first() -> None:
    moves = [
        LayerMove(first=0, end=2, source="b", destination="x"),
        LayerMove(first=2, end=3, source="c", destination="x"),
        LayerMove(first=5, end=6, source="c", destination="a"),
    ]
    got = shipments(moves, ["x"], "a", "x", outgoing=False)
    assert got == [Shipment("a", [], is_first=True), Shipment("b", [0, 1]), Shipment("c", [2])]
    assert shipments(moves, ["x"], "a", "a", outgoing=True) == [Shipment("x", [], is_first=True)]
    assert shipments(moves, ["x"], "a", "a", outgoing=False) == [Shipment("c", [5])]
    assert shipments(moves, ["x"], "a", "c", outgoing=True) == [Shipment("x", [2]), Shipment("a", [5])]


def test_the_first_source_sends_itself_nothing() -> None:
    assert shipments([], ["a", "x"], "a", "a", outgoing=True) == [Shipment("x", [], is_first=True)]
    assert shipments([], ["a", "x"], "a", "a", outgoing=False) == []


def test_the_last_owner_of_a_layer_does_not_leave() -> None:
    assert without_last_owners(TWO, ["a"]) == ["a"]
    assert without_last_owners(TWO, ["a", "c"]) == ["a"]  # c has the first layers then
    assert without_last_owners(TWO, ["a", "e"]) == ["a", "e"]
    assert without_last_owners(TWO, ["b", "d", "c"]) == ["b", "c"]


def test_who_gets_a_layer_is_its_owner_before_it_computes_it() -> None:
    coming = replace(TWO, pipelines=(replace(TWO.pipelines[0], members=("a", "x")), TWO.pipelines[1]))
    places = {**PLACES, "x": 5}
    tied, three = ([3, 0], [0]), ([3], [3])
    found = owned_by(TWO, places.__getitem__, {"tied": tied, "three": three}, {"mean": [3]}, coming=coming)
    assert found == [
        Owned(owners=(0, 1, 2, 3, 5), computing=(0, 2), uses=("tied",), buffers=()),
        Owned(owners=(1, 3, 5), computing=(1, 3), uses=("three",), buffers=("mean",)),
    ]

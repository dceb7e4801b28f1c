"""Members get the places for which they need the fewest bytes, and replicas of a layer are on different hosts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from multiworld.training.planning.changes.placement import Shape, place
from multiworld.training.planning.plan import Pipeline

from ..fake_templates import regular_templates

TEMPLATES = regular_templates(range(1, 7), 8, num_layers=12)


def shapes(*sizes: int) -> list[Shape]:
    return [Shape(template=TEMPLATES.template(size), num_micro_batches=4) for size in sizes]


def missing_bytes(pipelines: Sequence[Pipeline], held: Mapping[str, frozenset[int]], layer_bytes: Sequence[int]) -> int:
    return sum(
        layer_bytes[layer]
        for each in pipelines
        for member in each.members
        for layer in each.layers_of(member)
        if layer not in held.get(member, ())
    )


def owners_on_one_host(pipelines: Sequence[Pipeline], hosts: Mapping[str, str]) -> int:
    found = 0
    for layer in range(12):
        owners = [
            hosts[each.members[stage.node]]
            for each in pipelines
            for stage in each.template.stages
            if stage.first <= layer < stage.end
        ]
        found += len(owners) - len(set(owners))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_no_other_order_of_members_needs_fewer_bytes(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice([(2, 3), (5,), (1, 2, 3), (2, 2, 2)])
    members = [f"m{index}" for index in range(sum(sizes))]
    held = {each: frozenset(rng.sample(range(12), rng.randint(0, 8))) for each in members}
    layer_bytes = [rng.randint(0, 10**9) for _ in range(12)]
    hosts = {each: f"host{index // 2}" for index, each in enumerate(members)}
    pipelines, rest = place(shapes(*sizes), members, held, layer_bytes, hosts)
    assert rest == ()
    assert sorted(member for each in pipelines for member in each.members) == members
    least = min(
        missing_bytes(place_in_order(sizes, order), held, layer_bytes) for order in itertools.permutations(members)
    )
    assert missing_bytes(pipelines, held, layer_bytes) == least


def place_in_order(sizes: Sequence[int], order: Sequence[str]) -> list[Pipeline]:
    pipelines, begin = [], 0
    for shape, size in zip(shapes(*sizes), sizes, strict=True):
        pipelines.append(
            Pipeline(template=shape.template, members=tuple(order[begin : begin + size]), num_micro_batches=4)
        )
        begin += size
    return pipelines


def test_members_that_need_nothing_keep_their_order() -> None:
    members = ["a", "b", "c", "d", "e"]
    pipelines, rest = place(shapes(2, 2), members, {}, [10] * 12, {})
    assert [each.members for each in pipelines] == [("a", "b"), ("c", "d")]
    assert rest == ("e",)


def test_owners_of_a_layer_are_parted_over_hosts_where_that_costs_nothing() -> None:
    members = ["a", "b", "c", "d"]
    hosts = {"a": "left", "b": "right", "c": "left", "d": "right"}
    pipelines, _ = place(shapes(2, 2), members, {}, [10] * 12, hosts)
    assert owners_on_one_host(pipelines, hosts) == 0


def test_owners_stay_on_one_host_where_parting_them_would_move_more() -> None:
    first, second = frozenset(range(6)), frozenset(range(6, 12))
    held = {"a": first, "b": second, "c": first, "d": second}
    hosts = {"a": "left", "b": "right", "c": "left", "d": "right"}
    pipelines, _ = place(shapes(2, 2), list(held), held, [10] * 12, hosts)
    assert missing_bytes(pipelines, held, [10] * 12) == 0
    assert owners_on_one_host(pipelines, hosts) == 12

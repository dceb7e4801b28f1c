"""Members get the places for which they need the fewest bytes that leave each layer on several hosts."""

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
    pipelines, rest = place(shapes(*sizes), members, held, layer_bytes, hosts, is_worth_moves=False)
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


def test_layers_are_moved_so_that_no_host_alone_has_some() -> None:
    first, second = frozenset(range(6)), frozenset(range(6, 12))
    held = {"a": first, "b": second, "c": first, "d": second}
    hosts = {"a": "left", "b": "right", "c": "left", "d": "right"}
    pipelines, _ = place(shapes(2, 2), list(held), held, [10] * 12, hosts)
    assert owners_on_one_host(pipelines, hosts) == 0
    assert missing_bytes(pipelines, held, [10] * 12) == 120  # a member of each host gets the other layers


def test_owners_stay_on_one_host_where_no_loss_is_to_be_survived() -> None:
    first, second = frozenset(range(6)), frozenset(range(6, 12))
    held = {"a": first, "b": second, "c": first, "d": second}
    hosts = {"a": "left", "b": "right", "c": "left", "d": "right"}
    pipelines, _ = place(shapes(2, 2), list(held), held, [10] * 12, hosts, is_worth_moves=False)
    assert missing_bytes(pipelines, held, [10] * 12) == 0
    assert owners_on_one_host(pipelines, hosts) == 12


def test_nothing_more_is_moved_where_owners_are_on_several_hosts_already() -> None:
    first, second = frozenset(range(6)), frozenset(range(6, 12))
    held = {"a": first, "b": second, "c": first, "d": second, "e": first, "f": second}
    hosts = {"a": "left", "b": "right", "c": "left", "d": "right", "e": "right", "f": "left"}
    pipelines, _ = place(shapes(2, 2, 2), list(held), held, [10] * 12, hosts)
    assert missing_bytes(pipelines, held, [10] * 12) == 0


@pytest.mark.parametrize("seed", range(40))
def test_as_few_layers_as_can_be_have_all_owners_on_one_host(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice([(2, 2), (2, 3), (3, 3), (3, 4), (2, 2, 2), (2, 2, 3), (1, 2), (1, 3, 4)])
    members = [f"m{index}" for index in range(sum(sizes))]
    held = {each: frozenset(rng.sample(range(12), rng.randint(0, 8))) for each in members}
    num_hosts = rng.randint(2, 4)
    hosts = {each: f"host{rng.randrange(num_hosts)}" for each in members}
    pipelines, _ = place(shapes(*sizes), members, held, [rng.randint(1, 10**9) for _ in range(12)], hosts)
    orders = {tuple(hosts[each] for each in order) for order in itertools.permutations(members)}
    least = min(len(layers_of_one_host(place_in_order(sizes, order), None)) for order in orders)
    assert len(layers_of_one_host(pipelines, hosts)) == least


def layers_of_one_host(pipelines: Sequence[Pipeline], hosts: Mapping[str, str] | None) -> list[int]:
    """Return the layers with several owners, all on one host. ``hosts``: None: members are called by them."""
    found = []
    for layer in range(12):
        owners = [
            each.members[stage.node]
            for each in pipelines
            for stage in each.template.stages
            if stage.first <= layer < stage.end
        ]
        if len(owners) > 1 and len({each if hosts is None else hosts[each] for each in owners}) == 1:
            found.append(layer)
    return found

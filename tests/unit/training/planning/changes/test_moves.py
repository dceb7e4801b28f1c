"""Each member gets what it lacks, once, and nothing else; no source has much more to send than the others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from multiworld.training.planning.changes.moves import busiest_bytes, moves_to
from multiworld.training.planning.plan import Move, Pipeline

from ..fake_templates import regular_templates

TEMPLATES = regular_templates(range(1, 7), 8, num_layers=12)


def pipeline(*members: str) -> Pipeline:
    return Pipeline(template=TEMPLATES.template(len(members)), members=members, num_micro_batches=4)


def check(
    moves: Sequence[Move], pipelines: Sequence[Pipeline], held: Mapping[str, frozenset[int]], layer_bytes: Sequence[int]
) -> None:
    parts: dict[tuple[str, int], list[Move]] = {}
    for move in moves:
        assert move.layer in held[move.source]
        assert move.layer_bytes == layer_bytes[move.layer]
        parts.setdefault((move.destination, move.layer), []).append(move)
    wanted = {(m, n) for each in pipelines for m in each.members for n in each.layers_of(m) if n not in held.get(m, ())}
    assert set(parts) == wanted
    for (_, layer), each in parts.items():
        ends = 0
        for move in sorted(each, key=lambda move: move.offset_bytes):
            assert move.offset_bytes == ends
            ends += move.size_bytes
        assert ends == layer_bytes[layer]


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_each_member_gets_what_it_lacks_once_and_nothing_else(seed: int, divide: bool) -> None:
    rng = random.Random(seed)
    members = [f"m{index}" for index in range(8)]
    pipelines = [pipeline(*members[:5]), pipeline(*members[5:])]
    held = {each: frozenset(rng.sample(range(12), rng.randint(0, 6))) for each in members}
    held["m0"] = held["m0"] | (frozenset(range(12)) - frozenset().union(*held.values()))
    layer_bytes = [rng.choice([0, 1, 63, 1000, 10**6, 10**9]) for _ in range(12)]
    moves = moves_to(pipelines, held, layer_bytes, divide=divide)
    check(moves, pipelines, held, layer_bytes)
    if not divide:
        assert all(each.is_whole for each in moves)


def test_several_sources_send_the_same_amount_of_one_layer() -> None:
    held = {f"m{index}": frozenset(range(12)) for index in range(7)}
    moves = moves_to([pipeline("new")], held, [7 * 6400] * 12)
    assert Counter(each.source for each in moves).total() <= 12 + 6
    sent: Counter[str] = Counter()
    for each in moves:
        sent[each.source] += each.size_bytes
    assert max(sent.values()) <= 1.2 * sum(sent.values()) / 7
    assert busiest_bytes(moves) == 12 * 7 * 6400  # what the new one receives


def test_a_source_that_alone_has_a_layer_sends_less_of_the_others() -> None:
    held = {"one": frozenset(range(12)), "two": frozenset(range(6))}
    moves = moves_to([pipeline("new")], held, [6400] * 12)
    assert {each.source for each in moves if each.layer < 6} == {"two"}


def test_a_layer_that_nobody_has_cannot_be_moved() -> None:
    with pytest.raises(ValueError, match="no member that is alive has layer 11"):
        moves_to([pipeline("a", "b")], {"a": frozenset(range(11))}, [1] * 12)

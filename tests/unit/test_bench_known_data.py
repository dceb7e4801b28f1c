"""Data known by position, and what each rank of a collective must hold, checked against the definition of each."""

from __future__ import annotations

import pytest
import torch

from multiworld.bench.collective_calls import ROOT, Tensors
from multiworld.bench.known_data import fill, holds, spoil

KINDS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
SIZE_BYTES = 4_000


@pytest.mark.parametrize("numel", [1, 2, 250, 251, 252, 509, 510, 10_000])
def test_what_was_written_is_recognised_until_it_is_spoiled(numel: int) -> None:
    tensor = torch.empty(numel)
    fill(tensor, 3)
    assert tensor[0] == 3
    assert holds(tensor, 3)
    assert not holds(tensor)
    spoil(tensor)
    assert not holds(tensor, 3)


def test_one_page_that_did_not_arrive_is_noticed() -> None:
    tensor = torch.empty(100_000)
    fill(tensor)
    for page in range(0, tensor.numel(), 1024):
        missing = tensor.clone()
        missing[page : page + 1024] = -1
        assert not holds(missing)


def test_segments_in_another_order_are_noticed() -> None:
    tensor = torch.empty(4096)
    fill(tensor)
    assert not holds(torch.cat([tensor[1024:2048], tensor[:1024], tensor[2048:]]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_right_collectives_give_what_is_expected(kind: str, world_size: int, count: int) -> None:
    ranks = _prepared(kind, world_size)
    for _ in range(count):
        _collective(kind, ranks)
    assert all(rank.hold(kind, count) for rank in ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_that_did_nothing_is_noticed(kind: str) -> None:
    ranks = _prepared(kind, 4)
    assert not all(rank.hold(kind, 1) for rank in ranks)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce"])
def test_one_call_less_is_noticed(kind: str) -> None:
    ranks = _prepared(kind, 4)
    for _ in range(2):
        _collective(kind, ranks)
    assert not all(rank.hold(kind, 3) for rank in ranks)


def test_more_calls_than_float32_can_count_are_refused() -> None:
    [rank, *_] = _prepared("all_reduce", 4)
    with pytest.raises(ValueError, match="exceed float32"):
        rank.hold("all_reduce", 200)


def test_a_barrier_has_nothing_to_check() -> None:
    [rank, *_] = _prepared("barrier", 2)
    assert rank.hold("barrier", 5)


def _prepared(kind: str, world_size: int) -> list[Tensors]:
    ranks = [Tensors.make(SIZE_BYTES, rank, world_size) for rank in range(world_size)]
    for tensors in ranks:
        for tensor in (tensors.mine, *tensors.inputs, *tensors.outputs):
            tensor.fill_(float("nan"))  # what was allocated may hold anything
        tensors.prepare(kind)
    return ranks


def _collective(kind: str, ranks: list[Tensors]) -> None:
    mine = [rank.mine.clone() for rank in ranks]
    root = ranks[ROOT]
    if kind == "reduce":
        root.mine.copy_(sum(mine[1:], mine[0]))
    elif kind == "gather":
        _copy(root.outputs, mine)
    for number, rank in enumerate(ranks):
        if kind == "all_reduce":
            rank.mine.copy_(sum(mine[1:], mine[0]))
        elif kind == "broadcast":
            rank.mine.copy_(mine[ROOT])
        elif kind == "all_gather":
            _copy(rank.outputs, mine)
        elif kind == "scatter":
            rank.mine.copy_(root.inputs[number])
        elif kind == "reduce_scatter":
            shares = [other.inputs[number] for other in ranks]
            rank.mine.copy_(sum(shares[1:], shares[0]))
        elif kind == "all_to_all":
            _copy(rank.outputs, [other.inputs[number] for other in ranks])


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)

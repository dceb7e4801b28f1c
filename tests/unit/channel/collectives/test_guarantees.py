"""What holds beside right results: equal bits, untouched inputs, bounded memory, errors that pass, few messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from multiworld.channel import collectives
from multiworld.channel.collectives import TUNING, Tuning
from multiworld.channel.collectives.chunks import split_evenly
from multiworld.channel.collectives.tree import Tree, binomial_tree, chain
from tests.unit.channel.collectives.collective_cases import (
    ALWAYS_FLAT,
    ALWAYS_LARGE,
    ALWAYS_SMALL,
    COMPLEX,
    FLOATS,
    NEVER_FLAT,
    TINY,
    bits,
    random_tensor,
    rough_tensor,
)
from tests.unit.channel.collectives.fake_ports import FakeFailure, FakeNetwork, Steps, each, only

TUNINGS = pytest.mark.parametrize("tuning", [ALWAYS_SMALL, ALWAYS_LARGE, ALWAYS_FLAT], ids=["small", "large", "flat"])


@TUNINGS
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_all_ranks_get_the_same_bits_even_of_nans_and_zeros(dtype: torch.dtype, op: ReduceOp, tuning: Tuning) -> None:
    for size in range(2, 10):
        tensors = [rough_tensor((203,), dtype, rank) for rank in range(size)]
        FakeNetwork(size).run(collectives.all_reduce, each(tensors), op, tuning=tuning)
        assert len({bits(tensor) for tensor in tensors}) == 1, f"{size} ranks"


@TUNINGS
def test_the_order_of_delivery_changes_no_bit(tuning: Tuning) -> None:
    for size in (3, 6, 8):
        seen = set()
        for seed in range(8):
            tensors = [rough_tensor((203,), torch.float32, rank) for rank in range(size)]
            network = FakeNetwork(size, seed=seed, rendezvous=seed % 2 == 0)
            network.run(collectives.all_reduce, each(tensors), tuning=tuning)
            seen.add(bits(tensors[0]))
        assert len(seen) == 1, f"{size} ranks"


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_products_are_computed_once_per_element(dtype: torch.dtype) -> None:
    """Processors of different kinds may round them differently, so small tensors take the ring as well."""
    tensors = [rough_tensor((40,), dtype, rank) for rank in range(4)]
    network = FakeNetwork(4)
    network.run(collectives.all_reduce, each(tensors), ReduceOp.PRODUCT, tuning=ALWAYS_SMALL)
    assert len({bits(tensor) for tensor in tensors}) == 1
    assert network.num_messages >= 4 * 2 * 3, "not a ring"


@TUNINGS
def test_empty_and_scalar_tensors_work(tuning: Tuning) -> None:
    for shape in ((0,), (3, 0, 2), ()):
        for size in (1, 2, 5):
            tensors = [torch.ones(shape) for _ in range(size)]
            outputs = [[torch.empty(shape) for _ in range(size)] for _ in range(size)]
            mine = [torch.empty(shape) for _ in range(size)]
            ones = [torch.ones(shape)] * size
            FakeNetwork(size).run(collectives.broadcast, each(tensors), 0, tuning=tuning)
            FakeNetwork(size).run(collectives.all_gather, each(outputs), each(tensors), tuning=tuning)
            FakeNetwork(size).run(collectives.reduce_scatter, each(mine), each(outputs), tuning=tuning)
            FakeNetwork(size).run(collectives.all_to_all, each(outputs), ones)
            FakeNetwork(size).run(collectives.scatter, each(tensors), only(0, outputs[0], size), 0)
            FakeNetwork(size).run(collectives.gather, each(tensors), only(0, outputs[0], size), 0)
            FakeNetwork(size).run(collectives.reduce, each(tensors), size - 1, tuning=tuning)
            FakeNetwork(size).run(collectives.all_reduce, each(tensors), tuning=tuning)
            expected = torch.full(shape, float(2 * size - 1 if size > 1 else 1))
            torch.testing.assert_close(tensors, [expected] * size)
            torch.testing.assert_close(mine, [torch.full(shape, float(size))] * size)


@TUNINGS
def test_outputs_may_be_the_own_input(tuning: Tuning) -> None:
    for size in (1, 2, 5):
        lists = [[random_tensor((70,), torch.float32, 9 * r + part) for part in range(size)] for r in range(size)]
        own = [row[rank] for rank, row in enumerate(lists)]
        expected = [torch.stack([row[rank] for row in lists]).sum(0) for rank in range(size)]
        FakeNetwork(size, seed=3).run(collectives.reduce_scatter, each(own), each(lists), tuning=tuning)
        torch.testing.assert_close(own, expected)
        FakeNetwork(size, seed=4).run(collectives.all_gather, each(lists), each(own), tuning=tuning)
        for row in lists:
            torch.testing.assert_close(row, expected)


def test_parameters_and_inference_tensors_are_reduced_in_place() -> None:
    with torch.inference_mode():
        frozen = [torch.ones(40_000) for _ in range(3)]
    leaves = [torch.nn.Parameter(torch.ones(40_000)) for _ in range(3)]
    for tensors in (frozen, leaves):
        for tuning in (ALWAYS_SMALL, ALWAYS_LARGE, ALWAYS_FLAT):
            FakeNetwork(3).run(collectives.all_reduce, each(tensors), tuning=tuning)
    assert [tensor[0].item() for tensor in (*frozen, *leaves)] == [27.0] * 6
    assert all(leaf.is_leaf and leaf.requires_grad for leaf in leaves)


NUMBERS = 1 << 18
MIB = 1 << 20


def temporary_bytes(own: Sequence[Tensor], call: Callable[..., Steps], *args: object, **options: object) -> int:
    """Return the most that any rank received into beside its own tensors."""
    network = FakeNetwork(len(own))
    network.run(call, *args, **options)
    return max(port.temporary_bytes(*own) for port in network.ports)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_temporary_memory_stays_within_the_size_of_a_tensor(size: int) -> None:
    tuning = replace(NEVER_FLAT, chunk_bytes=16 * 1024)
    slack = 4 * tuning.chunk_bytes + 64
    tensors = [torch.ones(NUMBERS) for _ in range(size)]
    assert temporary_bytes(tensors, collectives.broadcast, each(tensors), 0, tuning=tuning) == 0
    assert temporary_bytes(tensors, collectives.all_reduce, each(tensors), tuning=tuning) <= MIB // size + slack
    assert temporary_bytes(tensors, collectives.reduce, each(tensors), 0, tuning=tuning) <= slack
    parts = [split_evenly(tensor[: NUMBERS // size * size], size) for tensor in tensors]
    outputs = [torch.empty(NUMBERS // size) for _ in range(size)]
    used = temporary_bytes(tensors, collectives.reduce_scatter, each(outputs), each(parts), tuning=tuning)
    assert used <= MIB // size + slack
    assert temporary_bytes(tensors, collectives.all_gather, each(parts), each(outputs), tuning=tuning) == 0


@TUNINGS
@pytest.mark.parametrize("failing", range(6))
def test_the_error_of_a_message_is_the_error_of_the_collective(failing: int, tuning: Tuning) -> None:
    tensors = [torch.ones(200) for _ in range(4)]
    lists = [[torch.ones(200) for _ in range(4)] for _ in range(4)]
    own = [[torch.ones(200) for _ in range(4)] for _ in range(4)]
    calls: list[tuple[Callable[..., Steps], tuple[object, ...], dict[str, object]]] = [
        (collectives.all_reduce, (each(tensors),), {"tuning": tuning}),
        (collectives.reduce_scatter, (each(tensors), each(lists)), {"tuning": tuning}),
        (collectives.all_gather, (each(lists), each(tensors)), {"tuning": tuning}),
        (collectives.all_to_all, (each(lists), each(own)), {}),
        (collectives.barrier, (), {}),
    ]
    for call, args, options in calls:
        network = FakeNetwork(4, seed=failing)
        network.fail_message = failing
        operations = network.start(call, *args, **options)
        assert [type(operation.error) for operation in operations if operation.error] == [FakeFailure]


def count_messages(size: int, call: Callable[..., Steps], *args: object, **options: object) -> int:
    network = FakeNetwork(size, shares=False)
    network.run(call, *args, **options)
    return network.num_messages


def test_small_tensors_take_few_steps() -> None:
    tensors = [torch.ones(10) for _ in range(8)]
    lists = [[torch.ones(10) for _ in range(8)] for _ in range(8)]
    assert count_messages(8, collectives.all_reduce, each(tensors)) == 8 * 3
    assert count_messages(8, collectives.all_gather, each(lists), each(tensors)) == 8 * 3
    assert count_messages(8, collectives.broadcast, each(tensors), 3) == 7
    assert count_messages(8, collectives.reduce, each(tensors), 3) == 7
    assert count_messages(8, collectives.barrier) == 8 * 3
    assert count_messages(6, collectives.all_reduce, each(tensors)) == 2 + 4 * 2 + 2
    assert count_messages(2, collectives.all_reduce, each(tensors)) == 2


def test_large_tensors_go_round_in_a_bounded_number_of_chunks() -> None:
    tensors = [torch.ones(1000) for _ in range(3)]
    expected = 3 * 2 * 2 * TINY.max_chunks  # ranks, reduce-scatter and all-gather, steps, chunks
    large = Tuning(chunk_bytes=TINY.chunk_bytes, max_chunks=TINY.max_chunks, doubling_bytes=0)
    assert count_messages(3, collectives.all_reduce, each(tensors), tuning=large) == expected


@pytest.mark.parametrize("shape", [binomial_tree, chain])
@pytest.mark.parametrize("size", [*range(1, 18), 64, 100])
def test_trees_reach_every_rank_once(shape: Callable[[int, int, int], Tree], size: int) -> None:
    for root in {0, 1 % size, size - 1}:
        places = [shape(rank, root, size) for rank in range(size)]
        children = [child for place in places for child in place.children]
        assert sorted([*children, root]) == list(range(size))
        for rank, place in enumerate(places):
            assert all(places[child].parent == rank for child in place.children)
            assert len(place.children) <= (size - 1).bit_length()


def test_a_tuning_that_cannot_work_is_refused() -> None:
    assert TUNING.window >= 1
    with pytest.raises(ValueError, match="window is 0, but must be at least 1"):
        Tuning(window=0)
    with pytest.raises(ValueError, match="doubling_bytes is -1, but must be at least 0"):
        Tuning(doubling_bytes=-1)

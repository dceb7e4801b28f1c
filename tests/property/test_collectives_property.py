"""Whatever the shapes, types, operations and worlds, and in whatever order messages arrive: results are torch's."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from multiworld.channel import collectives
from multiworld.channel.collectives import Tuning
from tests.unit.channel.collectives.collective_cases import (
    DTYPES,
    FLOATS,
    OPS,
    allows,
    bits,
    random_tensor,
    reduced,
    rough_tensor,
)
from tests.unit.channel.collectives.fake_ports import FakeNetwork, each, only

SIZES = st.integers(1, 9)
NUMELS = st.one_of(st.integers(0, 12), st.integers(0, 400))
SEEDS = st.integers(0, 2**32)
LIMITS = st.sampled_from([0, 100, 1 << 30])
TUNINGS = st.builds(
    Tuning,
    chunk_bytes=st.integers(1, 700),
    max_chunks=st.integers(1, 9),
    window=st.integers(1, 5),
    binomial_bytes=LIMITS,
    doubling_bytes=LIMITS,
    bruck_bytes=LIMITS,
    exchange_bytes=LIMITS,
)
unhurried = settings(deadline=None)  # other work on the machine is no failure
CASES = [(dtype, op) for dtype in DTYPES for op in OPS if allows(op, dtype)]


def network_of(size: int, seed: int) -> FakeNetwork:
    return FakeNetwork(size, seed=seed, rendezvous=seed % 2 == 0)


def rows_of(size: int, numel: int, dtype: torch.dtype, seed: int) -> list[list[Tensor]]:
    numbers = [[seed % 1000 + size * rank + part for part in range(size)] for rank in range(size)]
    return [[random_tensor((numel,), dtype, number) for number in row] for row in numbers]


def all_equal(actual: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@unhurried
@given(size=SIZES, numel=NUMELS, case=st.sampled_from(CASES), tuning=TUNINGS, seed=SEEDS, data=st.data())
def test_reductions(
    size: int, numel: int, case: tuple[torch.dtype, Any], tuning: Tuning, seed: int, data: st.DataObject
) -> None:
    dtype, op = case
    rows = rows_of(size, numel, dtype, seed)
    inputs = [row[0].clone() for row in rows]
    expected = reduced(inputs, op)

    dst = data.draw(st.integers(0, size - 1))
    rooted = [tensor.clone() for tensor in inputs]
    network_of(size, seed).run(collectives.reduce, each(rooted), dst, op, tuning=tuning)
    assert all_equal(rooted, [expected if rank == dst else inputs[rank] for rank in range(size)])

    everywhere = [tensor.clone() for tensor in inputs]
    network_of(size, seed).run(collectives.all_reduce, each(everywhere), op, tuning=tuning)
    assert all_equal(everywhere, [expected] * size)

    outputs = [torch.empty(numel, dtype=dtype) for _ in range(size)]
    network_of(size, seed).run(collectives.reduce_scatter, each(outputs), each(rows), op, tuning=tuning)
    assert all_equal(outputs, [reduced([row[rank] for row in rows], op) for rank in range(size)])
    for row, untouched in zip(rows, rows_of(size, numel, dtype, seed), strict=True):
        assert all_equal(row, untouched)


@unhurried
@given(size=SIZES, numel=NUMELS, dtype=st.sampled_from(DTYPES), tuning=TUNINGS, seed=SEEDS, data=st.data())
def test_movements(size: int, numel: int, dtype: torch.dtype, tuning: Tuning, seed: int, data: st.DataObject) -> None:
    rows = rows_of(size, numel, dtype, seed)
    inputs = [row[0] for row in rows]
    root = data.draw(st.integers(0, size - 1))

    tensors = [tensor.clone() for tensor in inputs]
    network_of(size, seed).run(collectives.broadcast, each(tensors), root, tuning=tuning)
    assert all_equal(tensors, [inputs[root]] * size)

    network_of(size, seed).run(collectives.scatter, each(tensors), only(root, rows[root], size), root)
    assert all_equal(tensors, rows[root])

    outputs = [[torch.empty(numel, dtype=dtype) for _ in range(size)] for _ in range(size)]
    network_of(size, seed).run(collectives.gather, each(inputs), only(root, outputs[0], size), root)
    assert all_equal(outputs[0], inputs)

    network_of(size, seed).run(collectives.all_gather, each(outputs), each(inputs), tuning=tuning)
    for output in outputs:
        assert all_equal(output, inputs)

    network_of(size, seed).run(collectives.all_to_all, each(outputs), each(rows))
    for rank, output in enumerate(outputs):
        assert all_equal(output, [row[rank] for row in rows])

    network_of(size, seed).run(collectives.barrier)


@unhurried
@given(size=SIZES, numel=NUMELS, dtype=st.sampled_from(FLOATS), tuning=TUNINGS, seed=SEEDS, data=st.data())
def test_all_ranks_and_all_orders_of_delivery_agree_on_every_bit(
    size: int, numel: int, dtype: torch.dtype, tuning: Tuning, seed: int, data: st.DataObject
) -> None:
    op = data.draw(st.sampled_from([op for op in OPS if allows(op, dtype)]))
    results: set[bytes] = set()
    for delivery in (seed, seed + 1):
        tensors = [rough_tensor((numel,), dtype, seed % 1000 + rank) for rank in range(size)]
        network_of(size, delivery).run(collectives.all_reduce, each(tensors), op, tuning=tuning)
        results |= {bits(tensor) for tensor in tensors}
    assert len(results) == 1

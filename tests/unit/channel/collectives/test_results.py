"""Every collective gives every rank what torch.distributed's would, in worlds of every size, for every size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from multiworld.channel import collectives
from multiworld.channel.collectives import Tuning
from tests.unit.channel.collectives.collective_cases import (
    ALWAYS_FLAT,
    ALWAYS_LARGE,
    ALWAYS_SMALL,
    DTYPES,
    OPS,
    allows,
    premultiplied_sum,
    random_tensor,
    reduced,
)
from tests.unit.channel.collectives.fake_ports import FakeNetwork, FakePort, each, only

SHAPE = (3, 50)
Network = Callable[[int], FakeNetwork]


@pytest.fixture(params=["in order", "rendezvous", "shuffled"])
def network(request: pytest.FixtureRequest) -> Network:
    seed = 7 if request.param == "shuffled" else None
    return lambda size: FakeNetwork(size, seed=seed, rendezvous=request.param != "in order")


@pytest.fixture(params=[ALWAYS_SMALL, ALWAYS_LARGE, ALWAYS_FLAT], ids=["small", "large", "flat"])
def tuning(request: pytest.FixtureRequest) -> Tuning:
    tuning = request.param
    assert isinstance(tuning, Tuning)
    return tuning


def tensors_of(size: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = SHAPE) -> list[Tensor]:
    return [random_tensor(shape, dtype, rank) for rank in range(size)]


def lists_of(size: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    return [[random_tensor(SHAPE, dtype, 100 * rank + part) for part in range(size)] for rank in range(size)]


def assert_equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", range(1, 10))
def test_broadcast_copies_the_source_to_all(size: int, network: Network, tuning: Tuning) -> None:
    for src in range(size):
        tensors = tensors_of(size)
        expected = tensors[src].clone()
        network(size).run(collectives.broadcast, each(tensors), src, tuning=tuning)
        assert_equal(tensors, [expected] * size)


@pytest.mark.parametrize("size", range(1, 10))
def test_all_reduce_reduces_in_place_on_all(size: int, network: Network, tuning: Tuning) -> None:
    tensors = tensors_of(size)
    expected = reduced(tensors, ReduceOp.SUM)
    network(size).run(collectives.all_reduce, each(tensors), tuning=tuning)
    assert_equal(tensors, [expected] * size)


@pytest.mark.parametrize("size", range(1, 10))
def test_reduce_changes_only_the_destination(size: int, network: Network, tuning: Tuning) -> None:
    for dst in range(size):
        tensors = tensors_of(size)
        expected = [tensor.clone() for tensor in tensors]
        expected[dst] = reduced(tensors, ReduceOp.SUM)
        network(size).run(collectives.reduce, each(tensors), dst, tuning=tuning)
        assert_equal(tensors, expected)


@pytest.mark.parametrize("size", range(1, 10))
def test_all_gather_gives_all_the_tensors_to_all(size: int, network: Network, tuning: Tuning) -> None:
    tensors = tensors_of(size)
    outputs = [[torch.empty(SHAPE) for _ in range(size)] for _ in range(size)]
    network(size).run(collectives.all_gather, each(outputs), each(tensors), tuning=tuning)
    for output in outputs:
        assert_equal(output, tensors)


@pytest.mark.parametrize("size", range(1, 10))
def test_gather_gives_all_the_tensors_to_the_destination(size: int, network: Network) -> None:
    for dst in range(size):
        tensors = tensors_of(size)
        output = [torch.empty(SHAPE) for _ in range(size)]
        network(size).run(collectives.gather, each(tensors), only(dst, output, size), dst)
        assert_equal(output, tensors)


@pytest.mark.parametrize("size", range(1, 10))
def test_scatter_gives_each_rank_its_tensor(size: int, network: Network) -> None:
    for src in range(size):
        inputs = tensors_of(size)
        tensors = [torch.empty(SHAPE) for _ in range(size)]
        network(size).run(collectives.scatter, each(tensors), only(src, inputs, size), src)
        assert_equal(tensors, inputs)


@pytest.mark.parametrize("size", range(1, 10))
def test_reduce_scatter_gives_each_rank_its_reduction_and_keeps_the_inputs(
    size: int, network: Network, tuning: Tuning
) -> None:
    inputs, outputs = lists_of(size), [torch.empty(SHAPE) for _ in range(size)]
    network(size).run(collectives.reduce_scatter, each(outputs), each(inputs), tuning=tuning)
    assert_equal(outputs, [reduced([row[rank] for row in inputs], ReduceOp.SUM) for rank in range(size)])
    for row, untouched in zip(inputs, lists_of(size), strict=True):
        assert_equal(row, untouched)


@pytest.mark.parametrize("size", range(1, 10))
def test_all_to_all_exchanges_tensors_of_a_shape_for_each_pair(size: int, network: Network) -> None:
    inputs = [[random_tensor((src, 1 + dst), torch.int32, dst) for dst in range(size)] for src in range(size)]
    outputs = [[torch.empty(src, 1 + dst, dtype=torch.int32) for src in range(size)] for dst in range(size)]
    network(size).run(collectives.all_to_all, each(outputs), each(inputs))
    for dst, output in enumerate(outputs):
        assert_equal(output, [row[dst] for row in inputs])


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "messages"])
def test_no_rank_leaves_a_barrier_before_all_have_come(size: int, *, shares: bool) -> None:
    network = FakeNetwork(size, rendezvous=True, shares=shares)
    absent = size - 1

    async def come_if_not_absent(port: FakePort) -> None:
        if port.rank != absent:
            await collectives.barrier(port)

    operations = network.start(come_if_not_absent)
    assert [operation.done for operation in operations] == [rank == absent for rank in range(size)]


@pytest.mark.parametrize("size", range(1, 10))
def test_a_barrier_that_all_reach_ends(size: int, network: Network) -> None:
    network(size).run(collectives.barrier)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_reductions_of_every_dtype_equal_torchs(op: ReduceOp, dtype: torch.dtype, tuning: Tuning) -> None:
    if not allows(op, dtype):
        with pytest.raises(TypeError, match="ReduceOp"):
            FakeNetwork(3).run(collectives.all_reduce, random_tensor(SHAPE, dtype, 0), op)
        return
    tensors, parts = tensors_of(3, dtype), lists_of(3, dtype)
    expected = reduced(tensors, op)
    rooted, outputs = [tensor.clone() for tensor in tensors], [torch.empty(SHAPE, dtype=dtype) for _ in range(3)]
    FakeNetwork(3).run(collectives.all_reduce, each(tensors), op, tuning=tuning)
    FakeNetwork(3).run(collectives.reduce, each(rooted), 1, op, tuning=tuning)
    FakeNetwork(3).run(collectives.reduce_scatter, each(outputs), each(parts), op, tuning=tuning)
    assert_equal(tensors, [expected] * 3)
    assert_equal([rooted[1]], [expected])
    assert_equal(outputs, [reduced([row[rank] for row in parts], op) for rank in range(3)])


def test_premultiplied_sums_scale_the_inputs_of_each_rank(tuning: Tuning) -> None:
    for size in (1, 3):
        op = premultiplied_sum(0.5)
        tensors, parts = tensors_of(size), lists_of(size)
        expected = [reduced(tensors, ReduceOp.SUM) * 0.5] * size
        rooted = [tensor.clone() for tensor in tensors]
        outputs = [torch.empty(SHAPE) for _ in range(size)]
        FakeNetwork(size).run(collectives.all_reduce, each(tensors), op, tuning=tuning)
        FakeNetwork(size).run(collectives.reduce, each(rooted), 0, op, tuning=tuning)
        FakeNetwork(size).run(collectives.reduce_scatter, each(outputs), each(parts), op, tuning=tuning)
        assert_equal(tensors, expected)
        assert_equal(rooted, [expected[0], *tensors_of(size)[1:]])
        assert_equal(outputs, [reduced([row[rank] for row in parts], ReduceOp.SUM) * 0.5 for rank in range(size)])
        for row, untouched in zip(parts, lists_of(size), strict=True):
            assert_equal(row, untouched)


OTHER_DTYPES = (torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental")
def test_dtypes_that_cannot_be_reduced_can_be_moved(dtype: torch.dtype, tuning: Tuning) -> None:
    raw = [torch.randint(0, 256, (64,), dtype=torch.uint8) for _ in range(4)]
    tensors = [row.view(dtype) for row in raw]
    outputs = [[torch.empty_like(tensors[0]) for _ in range(4)] for _ in range(4)]
    FakeNetwork(4).run(collectives.all_gather, each(outputs), each(tensors), tuning=tuning)
    for output in outputs:
        assert_equal([row.view(torch.uint8) for row in output], raw)
    with pytest.raises(TypeError, match="convert it first"):
        FakeNetwork(2).run(collectives.all_reduce, each(tensors))

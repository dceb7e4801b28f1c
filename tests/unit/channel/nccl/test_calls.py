"""How collectives are called on a process group, tried on a Gloo group of one rank, which has the same methods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from multiworld.channel.collectives.port import Port
from multiworld.channel.nccl.calls import check_reduction, launch_collective
from multiworld.channel.stream_channel.channel import Collective

SUM = dist.ReduceOp.SUM


async def no_steps(port: Port, tensors: list[Tensor]) -> None:
    raise AssertionError("the group carries it out")


def call(kind: str, tensors: list[Tensor], op: Any = None) -> Collective:
    return Collective(kind, kind, tensors, no_steps, op=op)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Any:
    c10d: Any = dist
    gloo = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._threads = 1
    options._timeout = timedelta(seconds=10)
    return gloo(c10d.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1), 0, 1, options)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "broadcast"])
def test_collectives_in_place(group: Any, kind: str) -> None:
    tensor = torch.arange(4.0)
    launch_collective(call(kind, [tensor], SUM), [tensor], 0, group).wait()
    assert torch.equal(tensor, torch.arange(4.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.complex64, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("kind", ["all_gather", "gather", "scatter"])
def test_collectives_that_only_move_take_any_dtype(group: Any, kind: str, dtype: torch.dtype) -> None:
    single, listed = torch.ones(2, 3).to(dtype), torch.zeros(2, 3).to(dtype)
    source, target = (listed, single) if kind == "scatter" else (single, listed)
    source.fill_(True)
    launch_collective(call(kind, [single, listed]), [single, listed], 0, group).wait()
    assert torch.equal(target, source)


def test_complex_numbers_are_reduced_as_pairs(group: Any) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    before = tensor.clone()
    launch_collective(call("all_reduce", [tensor], SUM), [tensor], 0, group).wait()
    assert torch.equal(tensor, before)


def test_the_lists_of_reduce_scatter_and_all_to_all_go_to_the_right_places() -> None:
    class Recorder:
        calls: list[tuple[Any, ...]] = []  # noqa: RUF012

        def size(self) -> int:
            return 2

        def reduce_scatter(self, *arguments: Any) -> None:
            self.calls.append(arguments)

        alltoall = reduce_scatter

    recorder = Recorder()
    output, first, second = torch.zeros(2), torch.ones(2), torch.full((2,), 2.0)
    launch_collective(call("reduce_scatter", [], SUM), [output, first, second], 0, recorder)
    outputs, inputs, options = recorder.calls[0]
    assert outputs[0] is output
    assert inputs[0][0] is first
    assert inputs[0][1] is second
    assert options.asyncOp
    tensors = [torch.zeros(1), torch.zeros(3), torch.ones(1), torch.ones(2)]
    launch_collective(call("all_to_all", []), tensors, 0, recorder)
    outputs, inputs, _ = recorder.calls[1]
    assert [part.nbytes for part in outputs] == [4, 12]
    assert [part.nbytes for part in inputs] == [4, 8]


def test_only_the_root_of_gather_and_scatter_gives_a_list() -> None:
    given: list[Any] = []

    class Recorder:
        def size(self) -> int:
            return 2

        def gather(self, outputs: Any, inputs: Any, options: Any) -> None:
            given.append(outputs)

        def scatter(self, outputs: Any, inputs: Any, options: Any) -> None:
            given.append(inputs)

    for kind in ("gather", "scatter"):
        launch_collective(call(kind, []), [torch.zeros(1)], 1, Recorder())
    assert given == [[], []]


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.float8_e4m3fn])
def test_what_nccl_has_no_type_for_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"NCCL cannot reduce torch\."):
        check_reduction(SUM, dtype)


def test_what_nccl_has_no_operation_for_is_refused() -> None:
    with pytest.raises(TypeError, match=r"has no .*BXOR"):
        check_reduction(dist.ReduceOp.BXOR, torch.int32)
    with pytest.raises(TypeError, match="complex arithmetic"):
        check_reduction(dist.ReduceOp.PRODUCT, torch.complex64)
    check_reduction(SUM, torch.complex64)
    check_reduction(dist.ReduceOp.AVG, torch.bfloat16)


def test_pairs_of_ranks_agree_on_each_part_of_an_all_to_all() -> None:
    parts = [torch.zeros(1), torch.zeros(2), torch.zeros(3, dtype=torch.int32), torch.zeros(2, 2)]
    said, expected = call("all_to_all", parts).signatures(2)
    assert said == ["all_to_all of 3 elements of int32", "all_to_all of 4 elements of float32"]
    assert expected == ["all_to_all of 1 elements of float32", "all_to_all of 2 elements of float32"]
    said, expected = call("barrier", parts).signatures(3)
    assert said == expected == ["barrier"] * 3

"""Arithmetic of reductions: in place, in order, in pieces that wake no thread pool; and which of them are refused."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp

from multiworld.channel.collectives import check_reduce_op, check_separate, reduce_op_name
from multiworld.channel.collectives.reduction import (
    GRAIN,
    combine,
    copy,
    finalize,
    premultiply,
    reduce_op_factor,
)
from tests.unit.channel.collectives.collective_cases import (
    DTYPES,
    OPS,
    allows,
    premultiplied_sum,
    random_tensor,
    reduced,
)


@pytest.mark.parametrize("numel", [0, 1, GRAIN - 1, GRAIN, GRAIN + 1, 3 * GRAIN + 5])
def test_combine_reduces_every_element_whatever_the_length(numel: int) -> None:
    into, other = random_tensor((numel,), torch.int64, 1), random_tensor((numel,), torch.int64, 2)
    expected = into + other
    combine(into, other, into, ReduceOp.SUM)
    assert torch.equal(into, expected)


def test_combine_keeps_the_operands_apart_and_may_write_into_either() -> None:
    left, right = torch.full((4,), float("nan")), torch.zeros(4)
    combine(left, right, right, ReduceOp.MAX)
    assert torch.isnan(right).all()
    combine(torch.ones(4), right, left, ReduceOp.SUM)
    assert torch.isnan(left).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_allowed_operation_equals_torchs(dtype: torch.dtype) -> None:
    for op in OPS:
        if not allows(op, dtype):
            continue
        left, right = random_tensor((50,), dtype, 1), random_tensor((50,), dtype, 2)
        expected = reduced([left, right], op)
        combine(left, right, left, op)
        finalize(left, op, 2)
        assert torch.equal(left, expected), str(op)


def test_a_sum_of_bools_is_a_logical_or() -> None:
    """As in NCCL. Gloo adds the bytes, and leaves a bool tensor that holds 2."""
    into = torch.tensor([True, True, False, False])
    combine(into, torch.tensor([True, False, True, False]), into, ReduceOp.SUM)
    assert into.view(torch.uint8).tolist() == [1, 1, 1, 0]


def test_integers_wrap_around() -> None:
    into = torch.tensor([250], dtype=torch.uint8)
    combine(into, torch.tensor([10], dtype=torch.uint8), into, ReduceOp.SUM)
    assert into.item() == 4


def test_copy_and_premultiply_cover_every_element() -> None:
    source, into = torch.arange(2 * GRAIN + 3, dtype=torch.float64), torch.zeros(2 * GRAIN + 3, dtype=torch.float64)
    copy(source, into)
    assert torch.equal(source, into)
    premultiply(source, into, 0.25)
    assert torch.equal(into, source * 0.25)


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="torch has no thread pool to wake here")
def test_arithmetic_over_many_elements_starts_no_thread() -> None:
    """torch makes a pool of its own for each thread that calls it with more than a grain of elements."""
    tensor, other = torch.zeros(40 * GRAIN), torch.ones(40 * GRAIN)
    started: list[int] = []

    def work() -> None:
        before = set(os.listdir("/proc/self/task"))
        combine(tensor, other, tensor, ReduceOp.AVG)
        finalize(tensor, ReduceOp.AVG, 2)
        premultiply(tensor, tensor, 3.0)
        copy(tensor, other)
        started.append(len(set(os.listdir("/proc/self/task")) - before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert started == [0]
    assert tensor[0].item() == other[-1].item() == 1.5


def test_the_kind_of_an_operation_is_found_in_all_its_forms() -> None:
    assert reduce_op_name(ReduceOp.MAX) == reduce_op_name(ReduceOp(ReduceOp.MAX)) == "MAX"
    assert reduce_op_name(premultiplied_sum(2.0)) == "PREMUL_SUM"
    for wrong in ("sum", 0, None, torch.add):
        with pytest.raises(TypeError, match="must be a torch"):
            reduce_op_name(wrong)  # type: ignore[arg-type]


def test_the_factor_of_a_premultiplied_sum_is_a_number_or_a_tensor_of_one() -> None:
    assert reduce_op_factor(premultiplied_sum(2.5)) == 2.5
    assert reduce_op_factor(premultiplied_sum(torch.tensor([1.5]))) == 1.5
    with pytest.raises(ValueError, match="has no factor"):
        reduce_op_factor(ReduceOp.PREMUL_SUM)


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        (ReduceOp.AVG, torch.int32, "AVG makes fractions, which torch.int32 cannot hold"),
        (ReduceOp.AVG, torch.bool, "AVG makes fractions, which torch.bool cannot hold"),
        (ReduceOp.BAND, torch.float32, "BAND works on the bits of integers and bool, not on torch.float32"),
        (ReduceOp.BXOR, torch.complex64, "BXOR works on the bits of integers"),
        (ReduceOp.MIN, torch.complex64, "MIN needs an order, which complex numbers have not"),
        (ReduceOp.SUM, torch.uint16, "SUM cannot reduce torch.uint16"),
        (premultiplied_sum(2.0), torch.int64, "PREMUL_SUM makes fractions"),
    ],
)
def test_operations_that_a_type_has_not_are_refused(op: Any, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_reduce_op(op, dtype)


def test_a_premultiplied_sum_without_a_factor_is_refused() -> None:
    with pytest.raises(ValueError, match="PREMUL_SUM has no factor"):
        check_reduce_op(ReduceOp.PREMUL_SUM, torch.float32)
    check_reduce_op(premultiplied_sum(2.0), torch.float32)


def test_outputs_that_share_memory_are_refused() -> None:
    buffer = torch.zeros(4)
    with pytest.raises(ValueError, match=r"tensor_list\[1\] and tensor_list\[0\] share memory"):
        check_separate([buffer] * 2, "tensor_list")
    with pytest.raises(ValueError, match=r"output_list\[0\] and input_list\[1\] share memory"):
        check_separate([buffer], "output_list", [torch.ones(4), buffer], "input_list")
    check_separate([buffer[:2], buffer[2:]], "tensor_list")
    check_separate([torch.empty(0)] * 3, "tensor_list")
    check_separate([torch.zeros(4), torch.ones(4)], "output_list", [buffer, buffer], "input_list")


def test_memory_that_overlaps_in_part_is_shared_too() -> None:
    buffer = torch.zeros(12)
    with pytest.raises(ValueError, match=r"tensor_list\[1\] and tensor_list\[0\] share memory"):
        check_separate([buffer[:4], buffer[3:7]], "tensor_list")
    with pytest.raises(ValueError, match=r"output and input_list\[1\] share memory"):
        check_separate(buffer[5:9], "output", [buffer[:4], buffer[4:8]], "input_list", in_place=1)
    with pytest.raises(ValueError, match=r"tensor_list\[2\] and tensor_list\[0\] share memory"):
        check_separate([buffer[:8], torch.zeros(8), buffer[4:]], "tensor_list")
    check_separate(list(buffer.view(4, 3).unbind(1)), "tensor_list")  # strided, and nobody shares an element


def test_only_a_rank_s_own_part_may_be_in_place() -> None:
    parts = list(torch.zeros(3, 4).unbind())
    check_separate(parts, "tensor_list", parts[1], "tensor", in_place=1)
    check_separate(parts[1], "output", parts, "input_list", in_place=1)
    for place in (0, None):
        with pytest.raises(ValueError, match=r"tensor_list\[1\] and tensor share memory"):
            check_separate(parts, "tensor_list", parts[1], "tensor", in_place=place)
    with pytest.raises(ValueError, match=r"output and input_list\[2\] share memory"):
        check_separate(parts[2], "output", parts, "input_list", in_place=1)

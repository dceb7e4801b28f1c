"""Samples are what they say: the same for one seed, of any bits, and told apart to the last of them."""

from __future__ import annotations

import pytest
import torch

from multiworld.testing.channel_conformance.arithmetic import FACTOR, Reduction, reductions
from multiworld.testing.samples import MOVABLE, PERIOD, any_tensor, bits, difference, repeated


@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental")
@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_any_bits_are_the_same_for_one_seed_and_others_for_another(dtype: torch.dtype) -> None:
    first = any_tensor((40,), dtype, 1)
    assert (first.dtype, first.shape) == (dtype, (40,))
    assert difference(first, any_tensor((40,), dtype, 1)) == ""
    assert "elements are wrong: element" in difference(any_tensor((40,), dtype, 2), first)
    assert any_tensor((3, 0), dtype, 1).shape == (3, 0)
    assert any_tensor((), dtype, 1).shape == ()


def test_a_difference_counts_and_shows_the_first() -> None:
    expected = torch.zeros(5)
    found = expected.clone()
    found[3], found[4] = 1.0, -0.0
    assert difference(found, expected) == (
        "2 of 5 elements are wrong: element 3 is 1.0 (0x3f800000) instead of 0.0 (0x00000000)"
    )
    assert "it is torch.float32[5] instead of torch.float32[4]" in difference(found, torch.zeros(4))
    assert bits(torch.tensor([1, 2], dtype=torch.uint8)) == b"\x01\x02"


def test_large_samples_repeat_a_small_one() -> None:
    large = any_tensor((2 * PERIOD + 5,), torch.uint8, 1)
    assert torch.equal(large[PERIOD:-5], large[:PERIOD])
    assert repeated(torch.empty(0), 0).numel() == 0


def test_a_reduction_may_be_rounded_in_any_order_but_not_wrong() -> None:
    for reduction in reductions():
        if not reduction.makes_sense:
            continue
        inputs = [reduction.sample(100, seed) for seed in range(5)]
        found = _reduced_backwards(reduction, inputs)
        assert reduction.wrong(found, inputs) == "", str(reduction)
        if reduction.dtype is not torch.bool:
            assert "elements are wrong" in reduction.wrong(found + 1, inputs), str(reduction)


def test_a_mean_that_was_not_divided_is_wrong() -> None:
    reduction = next(each for each in reductions() if each.name == "AVG" and each.dtype is torch.float32)
    inputs = [torch.ones(3), torch.ones(3)]
    assert "element 0 is 2.0 instead of 1.0" in reduction.wrong(torch.full((3,), 2.0), inputs)
    assert "element 0 is nan" in reduction.wrong(torch.full((3,), float("nan")), inputs)


def _reduced_backwards(reduction: Reduction, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Reduce in the type itself, last rank first."""
    functions = {
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    function = functions.get(reduction.name, torch.add)
    factor = FACTOR if reduction.name == "PREMUL_SUM" else 1
    total, *rest = [tensor * factor if factor != 1 else tensor for tensor in reversed(inputs)]
    for tensor in rest:
        total = function(total, tensor)
    return total / len(inputs) if reduction.name == "AVG" else total

"""Results are foreseen with the strides that the kernels of the CPU give, also where dimensions have one element."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from multiworld.remote.tensor.strides import as_with_data, index_strides

aten = torch.ops.aten
NUM_TRIALS = 150
OPERATORS = [
    (aten.add.Tensor, 2, ()),
    (aten.add.Tensor, 1, (1.5,)),
    (aten.mul.Tensor, 2, ()),
    (aten.maximum.default, 2, ()),
    (aten.gt.Tensor, 2, ()),
    (aten.gt.Scalar, 1, (0.5,)),
    (aten.rsub.Scalar, 1, (1.0,)),
    (aten.pow.Tensor_Scalar, 1, (2.0,)),
    (aten.addcmul.default, 3, ()),
    (aten.lerp.Scalar, 2, (0.5,)),
    (aten.neg.default, 1, ()),
    (aten.gelu.default, 1, ()),
    (aten.clamp.default, 1, (0.0, 1.0)),
    (aten.nan_to_num.default, 1, ()),
    (aten.flip.default, 1, ([0],)),
    (aten.sort.default, 1, (0,)),
    (aten.clone.default, 1, ()),
    (aten.empty_like.default, 1, ()),
    (aten.zeros_like.default, 1, ()),
    (aten.rand_like.default, 1, ()),
    (aten.fill.Scalar, 1, (1.0,)),
    (aten._softmax.default, 1, (0, False)),
    (aten.roll.default, 1, ([1], [0])),
    (aten.cumsum.default, 1, (0,)),
    (aten.constant_pad_nd.default, 1, ([1, 1],)),
]


def laid_out(rng: Random, shape: list[int]) -> Tensor:
    """Return zeros of a shape whose dimensions lie in memory in some order, here and there with gaps."""
    order = rng.sample(range(len(shape)), len(shape))
    tensor = torch.zeros([shape[each] + rng.choice((0, 0, 0, 1)) for each in order])
    for place, each in enumerate(order):
        tensor = tensor.narrow(place, 0, shape[each])
    tensor = tensor.permute([order.index(each) for each in range(len(shape))])
    if rng.random() < 0.3:
        strides = [
            rng.choice((1, 2, 7)) if size == 1 else own for size, own in zip(shape, tensor.stride(), strict=True)
        ]
        tensor = tensor.as_strided(tensor.shape, strides)
    return tensor


def some_of(rng: Random, shape: list[int]) -> list[int]:
    """Return a shape that broadcasts to that one."""
    kept = [size if rng.random() < 0.7 else 1 for size in shape]
    return kept[rng.randint(0, len(shape) - 1) :] if rng.random() < 0.3 else kept


def without_data(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), device="meta")


@pytest.mark.parametrize(("operator", "num_tensors", "rest"), OPERATORS, ids=lambda each: str(each))
def test_strides_are_those_of_the_cpu(operator: Any, num_tensors: int, rest: tuple[Any, ...]) -> None:
    rng = Random(7)
    for _ in range(NUM_TRIALS):
        shape = [rng.choice((0, 1, 1, 2, 3, 4)) for _ in range(rng.randint(1, 5))]
        local = [laid_out(rng, shape if rng.random() < 0.4 else some_of(rng, shape)) for _ in range(num_tensors)]
        there = [without_data(each) for each in local]
        made = operator(*local, *rest)
        foreseen = as_with_data(operator, (*there, *rest), {}, operator(*there, *rest))
        for one, other in zip(_listed(made), _listed(foreseen), strict=True):
            shown = [(tuple(each.shape), each.stride()) for each in local]
            assert (one.shape, one.stride()) == (other.shape, other.stride()), shown


def test_what_a_mask_fills_is_contiguous() -> None:
    rng = Random(8)
    for _ in range(NUM_TRIALS):
        shape = [rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(1, 5))]
        local, mask = laid_out(rng, some_of(rng, shape)), laid_out(rng, shape).to(torch.bool)
        there = (without_data(local), torch.empty_like(mask, device="meta"), 1.0)
        foreseen = as_with_data(aten.masked_fill.Scalar, there, {}, aten.masked_fill.Scalar(*there))
        assert foreseen.stride() == aten.masked_fill.Scalar(local, mask, 1.0).stride()


def _listed(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


@pytest.mark.parametrize("seed", range(60))
def test_what_indices_take_has_the_strides_of_the_kernel_with_data(seed: int) -> None:
    rng = Random(seed)
    shape = [rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(1, 4))]
    tensor = torch.zeros(shape).permute(rng.sample(range(len(shape)), len(shape)))
    if rng.random() < 0.3:
        tensor = tensor.expand(*[rng.choice((1, 2)) if size == 1 else size for size in tensor.shape])
    lengths = [rng.randint(1, 3) for _ in range(rng.randint(0, 2))]
    indices: list[Tensor | None] = [None] * tensor.dim()
    for dim in rng.sample(range(tensor.dim()), rng.randint(1, tensor.dim())):
        indices[dim] = torch.zeros(lengths, dtype=torch.int64)
    found = torch.ops.aten.index.Tensor(tensor, indices)
    metas = [None if each is None else each.to("meta") for each in indices]
    there = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
    stride = index_strides(there, metas)
    pairs = list(zip(found.shape, found.stride(), stride, strict=True))
    assert [each[1] for each in pairs if each[0] > 1] == [each[2] for each in pairs if each[0] > 1]

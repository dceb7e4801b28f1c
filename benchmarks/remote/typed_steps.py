"""More steps of random programs: other dtypes, complex views, indices of several dimensions, several results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["TYPED_STEPS"]

Apply = Callable[["list[Tensor]"], Any]
_DTYPES: Final = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool, torch.complex64)


def _pick(rng: Random, tensors: Sequence[Tensor], fits: Callable[[Tensor], bool] = lambda tensor: True) -> int:
    """Return the place of a tensor that fits; raises IndexError if there is none."""
    return rng.choice([place for place, each in enumerate(tensors) if fits(each)])


def _indices(rng: Random, length: int, shape: Sequence[int]) -> Tensor:
    """Return places below ``length``, which may occur more than once. Raises ValueError if there are none."""
    if not length:
        raise ValueError("no element")
    flat = [rng.randrange(-length, length) for _ in range(torch.Size(shape).numel())]
    return torch.tensor(flat, dtype=torch.int64).reshape(*shape)


def convert(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """Another dtype, or the same memory under another one."""
    place = _pick(rng, tensors)
    dtype = rng.choice(_DTYPES)
    conversions: list[Callable[[Tensor], Any]] = [
        lambda t: t.to(dtype),
        lambda t: t.type(dtype),
        lambda t: t.view(torch.int32),
        lambda t: t.view(torch.float32),
        lambda t: t.view(torch.uint8)[..., :8],
        lambda t: t.sum(dtype=torch.float64),
        lambda t: t > 0,
        lambda t: t.new_zeros((2, 3), dtype=dtype),
        lambda t: torch.full_like(t, 2, dtype=dtype),
    ]
    do = rng.choice(conversions)
    return lambda each: do(each[place])


def complex_view(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A view of a complex tensor, or a complex view of a real one."""
    views: list[Callable[[Tensor], Any]]
    if rng.random() < 0.5:
        place = _pick(rng, tensors, lambda tensor: tensor.is_complex())
        views = [
            lambda t: t.real,
            lambda t: t.imag,
            lambda t: t.conj(),
            lambda t: t.mT.conj(),
            lambda t: torch.view_as_real(t),
            lambda t: t.conj().imag,
            lambda t: t.resolve_conj(),
            lambda t: t.abs(),
            lambda t: t.conj().clone(),
            lambda t: t.conj() * t,
        ]
    else:
        place = _pick(rng, tensors, lambda tensor: tensor.dtype is torch.float32)
        views = [
            lambda t: torch.view_as_complex(t[..., :2]),
            lambda t: torch.complex(t, t * 2),
            lambda t: t.to(torch.complex64),
            lambda t: t.expand(2, *t.shape).movedim(0, -1).contiguous().view(torch.complex64),
        ]
    do = rng.choice(views)
    return lambda each: do(each[place])


def promote(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A result of two dtypes, or of a dtype and a number."""
    one, other = _pick(rng, tensors), _pick(rng, tensors)
    number: Any = rng.choice((2, -1, 0.5, True, 1 + 1j))
    results: list[Callable[[Tensor, Tensor], Any]] = [
        lambda a, b: a + b,
        lambda a, b: a * number,
        lambda a, b: number - a,
        lambda a, b: a == b,
        lambda a, b: torch.where(a > 0, a, number),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: torch.maximum(a, b),
        lambda a, b: torch.cat([a.flatten(), b.flatten()]),
        lambda a, b: torch.stack([a, a.to(b.dtype)]),
        lambda a, b: a.sum(0) + b,
        lambda a, b: a / 2,
        lambda a, b: a // 2,
        lambda a, b: a.cumsum(0, dtype=b.dtype),
        lambda a, b: (a & b) if a.dtype is torch.bool else a.logical_and(b),
        lambda a, b: a.logical_not(),
        lambda a, b: torch.result_type(a, b) is not None and a.clamp(min=0),
    ]
    do = rng.choice(results)
    return lambda each: do(each[one], each[other])


def write_across(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A write that converts, or through a view of a view."""
    place, source = _pick(rng, tensors), _pick(rng, tensors)
    number: Any = rng.choice((2, -1, 0.5, True))
    writes: list[Callable[[Tensor, Tensor], Any]] = [
        lambda t, s: t.copy_(s),
        lambda t, s: t.copy_(s.sum()),
        lambda t, s: t[..., :1].transpose(0, -1).copy_(s),
        lambda t, s: t.flatten()[::2].fill_(number),
        lambda t, s: t.view(-1)[1:].add_(number),
        lambda t, s: t.unsqueeze(0).transpose(0, 1)[0].mul_(number),
        lambda t, s: t.diagonal().zero_(),
        lambda t, s: t.real.fill_(number),
        lambda t, s: t.imag.add_(number),
        lambda t, s: t.expand(2, *t.shape).add_(number),
        lambda t, s: t.expand_as(s).copy_(s),
        lambda t, s: t.eq_(s),
        lambda t, s: t.logical_not_(),
        lambda t, s: t.fill_diagonal_(number),
        lambda t, s: t.where(t > 0, s).sort()[0].copy_(t),
        lambda t, s: t.conj_physical_(),
        lambda t, s: t.data.add_(number),
        lambda t, s: setattr(t, "data", s),
        lambda t, s: t.swapaxes(0, -1)[0].copy_(s[..., 0]),
    ]
    do = rng.choice(writes)
    return lambda each: _nothing(do(each[place], each[source]))


def scatter(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A write or a read through indices of several dimensions, masks, and what accumulates."""
    place, source = _pick(rng, tensors, lambda tensor: tensor.dim() > 0), _pick(rng, tensors)
    shape = tensors[place].shape
    dim = rng.randrange(len(shape))
    spread = _indices(rng, shape[dim], [min(2, size) for size in shape]).abs() % shape[dim]
    rows = _indices(rng, shape[0], [rng.randint(1, 3)])
    columns = _indices(rng, min(shape[1:], default=shape[0]), list(rows.shape))  # none is out of bounds anywhere
    flat = _indices(rng, tensors[place].numel(), [2])
    mask = torch.tensor([rng.random() < 0.5 for _ in range(shape.numel())]).reshape(shape)
    number = rng.randint(-2, 2)
    accumulates = rng.random() < 0.5
    width, step = rng.randint(0, shape[dim]), rng.randint(1, 2)

    def at(key: Any) -> Callable[[Tensor, Tensor], Any]:
        is_number = rng.random() < 0.5
        return lambda t, s: t.__setitem__(key, number if is_number else s)

    writes: list[Callable[[Tensor, Tensor], Any]] = [
        at((rows, ..., columns)),
        at((..., columns)),
        at((slice(None), None)),
        at(mask),
        at((rows[0], slice(None, None, 2))),
        at(Ellipsis),
        lambda t, s: t.index_put_((rows, columns), s, accumulate=accumulates),
        lambda t, s: t.index_put_((mask,), s.sum().to(t.dtype), accumulate=accumulates),
        lambda t, s: t.scatter_(dim, spread, number),
        lambda t, s: t.scatter_add_(dim, spread, t.clone()),
        lambda t, s: t.scatter_reduce_(dim, spread, t.clone(), "amax"),
        lambda t, s: t.masked_scatter_(mask, t.flip(0)),
        lambda t, s: t.masked_fill_(mask, number),
        lambda t, s: t.masked_fill_(mask[0], s.sum().to(t.dtype)),
        lambda t, s: t.put_(flat, t.flatten()[:2].clone(), accumulate=accumulates),
        lambda t, s: t.unfold(dim, width, step).add_(number),
        lambda t, s: t.as_strided((2, 2), (1, 1)).copy_(s),
    ]
    reads: list[Callable[[Tensor], Any]] = [
        lambda t: t[rows, ..., columns],
        lambda t: t[..., columns],
        lambda t: t[mask],
        lambda t: t[None, rows],
        lambda t: t.gather(dim, spread),
        lambda t: t.take(flat),
        lambda t: t.masked_select(mask),
        lambda t: t.index_add(0, rows, t[rows]),
        lambda t: t.unfold(dim, width, step),
        lambda t: t.as_strided((2, 2), (1, 1)),
        lambda t: t.roll(1, dim),
        lambda t: t.tensor_split(2, dim),
        lambda t: torch.split_with_sizes(t, [1, shape[dim] - 1], dim),
        lambda t: t.max(dim),
        lambda t: t.aminmax(),
        lambda t: t.diff(dim=dim),
        lambda t: t.argsort(dim=dim, stable=True),
        lambda t: t.cummax(dim),
        lambda t: t.tile(2),
        lambda t: t.narrow(dim, 0, 1).expand_as(t),
    ]
    if rng.random() < 0.5:
        read = rng.choice(reads)
        return lambda each: read(each[place])
    write = rng.choice(writes)
    return lambda each: _nothing(write(each[place], each[source]))


def out_across(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """``out=`` of another shape or dtype, which may be a view, or several of them."""
    one, other, target = _pick(rng, tensors), _pick(rng, tensors), _pick(rng, tensors)
    calls: list[Callable[[Tensor, Tensor, Tensor], Any]] = [
        lambda a, b, t: torch.add(a, b, out=t),
        lambda a, b, t: torch.mul(a, 2, out=t),
        lambda a, b, t: torch.eq(a, b, out=t),
        lambda a, b, t: torch.sum(a, 0, out=t),
        lambda a, b, t: torch.cat([a, a], out=t),
        lambda a, b, t: torch.where(a > 0, a, b, out=t),
        lambda a, b, t: torch.clamp(a, -1, 1, out=t),
        lambda a, b, t: torch.neg(a, out=t),
        lambda a, b, t: torch.flatten(torch.add(a, a, out=t)),
        lambda a, b, t: torch.max(a, 0, out=(t, t.new_empty(0, dtype=torch.int64))),
        lambda a, b, t: torch.sort(a, out=(t, t.new_empty(0, dtype=torch.int64))),
    ]
    do = rng.choice(calls)
    if any(
        tensors[target] is tensors[each] for each in (one, other)
    ):  # PyTorch resizes some operands before it reads them
        raise IndexError("no operator writes its operand")
    return lambda each: _nothing(do(each[one], each[other], each[target]))


def _nothing(made: object) -> None:
    """What a write returns is the tensor that it wrote, which is there already."""


TYPED_STEPS: Final[list[Callable[[Random, Sequence[Tensor]], Apply]]] = [
    convert,
    complex_view,
    promote,
    write_across,
    write_across,
    scatter,
    scatter,
    scatter,
    out_across,
]

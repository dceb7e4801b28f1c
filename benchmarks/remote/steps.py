"""Steps of random programs: each is chosen by the shapes of what is there, and applied on both sides."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["STEPS", "Apply", "Step"]

Apply = Callable[["list[Tensor]"], Any]
"""Does the step on the tensors of one side, and returns what it made: a tensor, several, or None."""
Step = Callable[[Random, "Sequence[Tensor]"], "Apply | None"]
"""Chooses by the tensors of the local side; None if none of them fits."""
MOST_ELEMENTS: Final = 400


def _pick(rng: Random, tensors: Sequence[Tensor], dims: int = 0) -> int:
    """Return the place of a tensor with that many dimensions at least; raises IndexError if there is none."""
    return rng.choice([place for place, each in enumerate(tensors) if each.dim() >= dims])


def view(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A view of any tensor, which may be a view."""
    place = _pick(rng, tensors, 1)
    shape = tensors[place].shape
    dim, other = rng.randrange(len(shape)), rng.randrange(len(shape))
    length = shape[dim]
    start = rng.randint(0, length)
    end, step = rng.randint(start, length), rng.randint(1, 3)
    order = rng.sample(range(len(shape)), len(shape))
    index = rng.randrange(-length, length) if length else 0
    width = rng.randint(0, min(2, length))
    sizes = [rng.choice((3, -1)) if size == 1 else -1 for size in shape]
    index_of_dims = tuple(slice(start, end, step) if each == dim else slice(None) for each in range(len(shape)))
    views: list[Callable[[Tensor], Any]] = [
        lambda t: t.select(dim, index),
        lambda t: t.narrow(dim, start, end - start),
        lambda t: t[index_of_dims],
        lambda t: t[..., None, :],
        lambda t: t.transpose(dim, other),
        lambda t: t.permute(order),
        lambda t: t.unsqueeze(dim),
        lambda t: t.squeeze(),
        lambda t: t.expand(2, *sizes),
        lambda t: t.view(-1),
        lambda t: t.flatten(),
        lambda t: t.reshape(*reversed(t.shape)),
        lambda t: t.diagonal(0, dim, other),
        lambda t: t.unfold(dim, width, 1),
        lambda t: t.chunk(2, dim),
        lambda t: t.unbind(dim)[:2],
        lambda t: t.movedim(dim, other),
        lambda t: t.detach(),
        lambda t: t.view_as(t),
        lambda t: t.as_strided(t.shape, t.stride(), t.storage_offset()),
    ]
    take = rng.choice(views)
    return lambda each: take(each[place])


def write(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """An operator that writes a tensor, which may be a view, or may have views."""
    place, source = _pick(rng, tensors), _pick(rng, tensors)
    number, whole = round(rng.uniform(-2, 2), 2), rng.randint(-3, 3)
    writes: list[Callable[[Tensor, Tensor], Any]] = [
        lambda t, s: t.add_(s),
        lambda t, s: t.sub_(s, alpha=whole),
        lambda t, s: t.mul_(number),
        lambda t, s: t.copy_(s),
        lambda t, s: t.fill_(number),
        lambda t, s: t.zero_(),
        lambda t, s: t.neg_(),
        lambda t, s: t.clamp_(-50, 50),
        lambda t, s: t.addcmul_(s, s, value=number),
        lambda t, s: t.lerp_(s, number),
        lambda t, s: t.masked_fill_(s > whole, number),
        lambda t, s: t.cumsum_(0),
        lambda t, s: t.relu_(),
        lambda t, s: t.tril_(),
        lambda t, s: torch._foreach_add_([t], whole),
        lambda t, s: torch._foreach_mul_([t], number),
    ]
    do = rng.choice(writes)

    def apply(each: list[Tensor]) -> None:
        do(each[place], each[source])

    return apply


def _nothing(made: object) -> None:
    """What a write returns is the tensor that it wrote, which is there already."""


def write_at(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A write through an index: a slice, an index, a mask."""
    place, source = _pick(rng, tensors, 1), _pick(rng, tensors)
    length = tensors[place].shape[0]
    start = rng.randint(0, length)
    chosen = torch.tensor(
        [rng.randrange(length) for _ in range(rng.randint(0, 3))] if length else [], dtype=torch.int64
    )
    number = round(rng.uniform(-2, 2), 2)
    mask = torch.tensor([rng.random() < 0.5 for _ in range(length)], dtype=torch.bool)

    def at(key: Any) -> Callable[[Tensor, Tensor], Any]:
        is_number = rng.random() < 0.5
        return lambda t, s: t.__setitem__(key, number if is_number else s)

    writes: list[Callable[[Tensor, Tensor], Any]] = [
        at(slice(start, None)),
        at((..., 0)),
        at(chosen),
        at(mask),
        lambda t, s: t.index_fill_(0, chosen.to(t.dtype).long(), number),
        lambda t, s: t.index_add_(0, chosen, t.index_select(0, chosen)),
        lambda t, s: t.index_put_((chosen,), s, accumulate=True),
        lambda t, s: t.index_copy_(0, chosen[:1], t[:1].clone()),
    ]
    do = rng.choice(writes)
    return lambda each: _nothing(do(each[place], each[source]))


def reshape_in_place(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """An operator that gives the same tensor another shape."""
    place = _pick(rng, tensors)
    tensor = tensors[place]
    dims = max(1, tensor.dim())
    dim, other = rng.randrange(dims), rng.randrange(dims)
    smaller = [rng.randint(0, size) for size in tensor.shape]
    end = (tensor.storage_offset() + torch.Size(smaller).numel()) * tensor.itemsize
    fits = end <= tensor.untyped_storage().nbytes()  # else it gets memory that nobody wrote
    changes: list[Callable[[Tensor], Any]] = [
        lambda t: t.t_(),
        lambda t: t.transpose_(dim, other),
        lambda t: t.squeeze_(),
        lambda t: t.squeeze_(dim),
        lambda t: t.unsqueeze_(dim),
        lambda t: t.resize_(smaller if fits else t.shape),
        lambda t: t.as_strided_(t.shape[::-1], t.stride()[::-1]),
        lambda t: t.swapaxes_(dim, other),
        lambda t: t.detach_(),
    ]
    do = rng.choice(changes)
    return lambda each: _nothing(do(each[place]))


def out(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A result that goes to a tensor which is there, of the right shape or empty."""
    one, other = _pick(rng, tensors), _pick(rng, tensors)
    functions: list[Callable[..., Tensor]] = [
        lambda a, b, out: torch.add(a, b, out=out),
        lambda a, b, out: torch.mul(a, b, out=out),
        lambda a, b, out: torch.maximum(a, b, out=out),
        lambda a, b, out: torch.sum(a, 0, out=out),
        lambda a, b, out: torch.cat([a, b], 0, out=out),
        lambda a, b, out: torch.stack([a, a], out=out),
        lambda a, b, out: torch.neg(a, out=out),
        lambda a, b, out: torch.mm(a, b, out=out),
        lambda a, b, out: torch.index_select(a, 0, torch.zeros(2, dtype=torch.int64), out=out),
    ]
    function = rng.choice(functions)
    shape = function(tensors[one], tensors[other], out=torch.empty(0, dtype=tensors[one].dtype)).shape
    targets = [place for place, each in enumerate(tensors) if each.shape == shape and each.dtype == tensors[one].dtype]
    if targets and rng.random() < 0.7:
        target = rng.choice(targets)
        return lambda each: _nothing(function(each[one], each[other], out=each[target]))

    def into_new(each: list[Tensor]) -> Tensor:
        new = each[one].new_empty(0)
        returned = function(each[one], each[other], out=new)
        assert returned is new
        return new

    return into_new


def make(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A new tensor from those that are there; some depend on data, and wait for the node."""
    one, other = _pick(rng, tensors), _pick(rng, tensors)
    number = round(rng.uniform(-2, 2), 2)
    dtype = rng.choice((torch.float32, torch.float64, torch.int64))
    makers: list[Callable[[Tensor, Tensor], Any]] = [
        lambda a, b: a + b,
        lambda a, b: a * number,
        lambda a, b: torch.where(a > b, a, b),
        lambda a, b: a.clone(),
        lambda a, b: a.contiguous(),
        lambda a, b: a.to(dtype),
        lambda a, b: a.sum(),
        lambda a, b: a.cumsum(-1),
        lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]),
        lambda a, b: a.flip(0),
        lambda a, b: a.sort(dim=-1)[0],
        lambda a, b: a[a > 0],
        lambda a, b: a.nonzero().to(a.dtype),
        lambda a, b: a * a.sum().clamp(-9, 9).item(),
        lambda a, b: torch.ones_like(a),
        lambda a, b: a.repeat_interleave(2, 0),
        lambda a, b: a.matmul(b),
        lambda a, b: a.topk(1, -1)[0],
    ]
    do = rng.choice(makers)
    return lambda each: do(each[one], each[other])


def forget(rng: Random, tensors: Sequence[Tensor]) -> Apply:
    """A tensor is given up, while views of it may stay."""
    place = _pick(rng, tensors)
    replaced = rng.randrange(len(tensors))

    def apply(each: list[Tensor]) -> None:
        each[place] = each[replaced]

    return apply


STEPS: Final[list[Step]] = [
    *itertools.repeat(view, 4),
    *itertools.repeat(write, 4),
    write_at,
    write_at,
    out,
    out,
    make,
    make,
    reshape_in_place,
    forget,
]

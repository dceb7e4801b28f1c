"""One sample of one operator, on a node and beside it: the same bits, forward and backward, or what else came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from multiworld.remote import PlaceMismatchError, RemoteOperationError, RemoteTensor, UnsupportedOperationError
from multiworld.remote.master.node import Node
from multiworld.remote.node.operators import OperatorRefusedError

__all__ = ["Finding", "Found", "compare"]

UNINITIALISED: Final = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    )
)
"""Operators whose results hold what was in their memory before: only shape and dtype are compared."""
SEED: Final = 20
NUM_REPEATS: Final = 20
COPIES_LEFT: Final = 8


class Found(Enum):
    EQUAL = "equal"
    UNINITIALISED = "uninitialised"
    UNREPEATABLE = "not repeatable"
    """PyTorch itself gives other bits in another run here, and the node's values are close to them."""
    DIFFERENT = "different"
    REFUSED = "refused"
    """The error names the operation, and what to do instead."""
    FAILED = "failed"
    """Any other error."""


class Finding(NamedTuple):
    """``operator``: as OpInfo names it. ``is_backward``: of gradients. ``text``: what differs, or the error."""

    operator: str
    is_backward: bool
    found: Found
    text: str = ""


@dataclass(frozen=True)
class Place:
    """Where a sample runs: on a node, or here, where ``node`` is None."""

    node: Node | None

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed the generator there; some functions of OpInfo's seed again, and mean the same one."""
        seed_here = torch.manual_seed

        def seed(value: int) -> torch.Generator:
            if self.node is not None:
                self.node.manual_seed(value)
            return seed_here(value)

        seed(SEED)
        with patch.object(torch, "manual_seed", seed):
            yield

    def twin(self, value: Any) -> Any:
        """Return a copy of a tensor there, with its strides if these are dense; anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        if value.layout is not torch.strided:
            return self._put(value.detach())
        with torch.no_grad():
            plain = value.detach().resolve_conj().resolve_neg()
            strides = plain.stride()
            order = sorted(range(plain.dim()), key=lambda dim: -strides[dim])
            there = self._put(plain.permute(order).contiguous().clone())
            there = there.permute([order.index(dim) for dim in range(plain.dim())])
        return there.detach().requires_grad_(value.requires_grad)

    def _put(self, value: Tensor) -> Tensor:
        return value if self.node is None else self.node.send(value)


class Outcome(NamedTuple):
    """``grads``: takes the gradients; None if there are none."""

    results: list[Any]
    grads: Callable[[], list[Any]] | None


def compare(node: Node, name: str, function: Callable[..., Any], sample: Any, *, backward: bool) -> list[Finding]:
    """Return what was found of the results, and of the gradients if ``backward`` and if there are any.

    A sample that fails beside the node, too, says nothing: it is left out.
    """
    try:
        expected = _run(Place(None), function, sample, backward=backward)
        grads = expected.grads() if expected.grads is not None else None
    except Exception:  # there is nothing to compare with
        return []
    try:
        outcome = _run(Place(node), function, sample, backward=backward)
        findings = [_judge(name, False, expected.results, outcome.results)]
        if findings[0].found is Found.DIFFERENT and not _is_repeatable(function, sample, expected.results, backward):
            findings = [_judge_close(name, expected.results, outcome.results)]
    except Exception as error:
        return [_error(name, False, error)]
    if grads is not None:
        try:
            assert outcome.grads is not None, "no result needs a gradient"
            findings.append(_judge(name, True, grads, outcome.grads()))
        except Exception as error:
            findings.append(_error(name, True, error))
    return findings


def _is_repeatable(function: Callable[..., Any], sample: Any, expected: list[Any], backward: bool) -> bool:
    """Whether PyTorch gives the same bits again here. It does not where a kernel reads memory that nobody wrote."""
    kept = []
    for turn in range(NUM_REPEATS):
        kept.append(torch.randn(3 * turn + 1))  # the next results lie elsewhere
        leave_behind(float(turn - 1))
        found = _run(Place(None), function, sample, backward=backward).results
        pairs = zip(expected, found, strict=True)
        if any(isinstance(one, Tensor) and not _same_bits(one, other) for one, other in pairs):
            return False
    return True


def leave_behind(value: float) -> None:
    """Free memory of many sizes that holds this value: a kernel that reads what nobody wrote finds it."""
    for _ in range(COPIES_LEFT):
        left = [torch.full((1 << power,), value) for power in range(2, 14)]
        del left


def _judge_close(name: str, expected: list[Any], found: list[Any]) -> Finding:
    close = all(torch.allclose(one, other.fetch(), 1e-3, 1e-4) for one, other in zip(expected, found, strict=True))
    return Finding(name, False, Found.UNREPEATABLE if close else Found.DIFFERENT, "other values, as in each run here")


def _run(place: Place, function: Callable[..., Any], sample: Any, *, backward: bool) -> Outcome:
    arguments = pytree.tree_map(place.twin, (sample.input, tuple(sample.args), dict(sample.kwargs)))
    first, others, keywords = arguments
    makes = not any(isinstance(each, Tensor) for each in pytree.tree_leaves(arguments))
    where = place.node if makes and place.node is not None else nullcontext()
    with torch.set_grad_enabled(backward), place.seeded(), where:
        returned = function(first, *others, **keywords)
    results = [each.detach() if isinstance(each, Tensor) else each for each in pytree.tree_leaves(returned)]
    inputs = _needing_grad(arguments)
    outputs = _needing_grad(sample.output_process_fn_grad(returned)) if backward else []
    if not inputs or not outputs:
        return Outcome(results, None)

    def grads() -> list[Any]:
        generator = torch.Generator().manual_seed(SEED)
        weights = [place.twin(torch.randn(each.shape, dtype=each.dtype, generator=generator)) for each in outputs]
        torch.autograd.backward(outputs, weights)
        return [each.grad for each in inputs]

    return Outcome(results, grads)


def _needing_grad(values: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(values) if isinstance(each, Tensor) and each.requires_grad]


def _judge(name: str, is_backward: bool, expected: list[Any], found: list[Any]) -> Finding:
    only_shapes = name in UNINITIALISED and not is_backward
    difference = _difference(expected, found, only_shapes=only_shapes)
    if difference is not None:
        return Finding(name, is_backward, Found.DIFFERENT, difference)
    return Finding(name, is_backward, Found.UNINITIALISED if only_shapes else Found.EQUAL)


def _difference(expected: list[Any], found: list[Any], *, only_shapes: bool) -> str | None:
    if len(expected) != len(found):
        return f"{len(found)} results, not {len(expected)}"
    for one, other in zip(expected, found, strict=True):
        if not isinstance(one, Tensor):
            if one != other and not (one != one and other != other):
                return f"{other!r}, not {one!r}"
            continue
        if not isinstance(other, RemoteTensor):
            return f"a {type(other).__name__} of the master's"
        values = other.fetch()
        if (values.shape, values.dtype) != (one.shape, one.dtype):
            return f"{tuple(values.shape)} {values.dtype}, not {tuple(one.shape)} {one.dtype}"
        if not only_shapes and not _same_bits(one, values):
            return f"other values in {tuple(one.shape)} {one.dtype}"
    return None


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    return torch.equal(one, other) or bool(((one == other) | (one != one) & (other != other)).all())


def _error(name: str, is_backward: bool, error: Exception) -> Finding:
    is_refused = isinstance(error, (PlaceMismatchError, UnsupportedOperationError)) or (
        isinstance(error, RemoteOperationError) and error.kind == OperatorRefusedError.__name__
    )
    found = Found.REFUSED if is_refused else Found.FAILED
    return Finding(
        name, is_backward, found, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    )

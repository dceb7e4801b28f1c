"""Decide whether the arguments of a collective make sense, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import InvalidTypeError, InvalidValueError
from .reduction import reduce_op_factor, reduce_op_name

_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_COMPLEX = frozenset((torch.complex64, torch.complex128))
_INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool))


def check_reduce_op(op: Any, dtype: torch.dtype) -> None:
    """Check that the reduce operation is defined for elements of that type, and that a PREMUL_SUM has its factor.

    InvalidTypeError or InvalidValueError if not.
    """
    name = reduce_op_name(op)
    if dtype not in _FLOATS | _COMPLEX | _INTEGERS:
        raise InvalidTypeError(
            f"ReduceOp.{name} cannot reduce {dtype}, as torch cannot add it on the CPU: convert it first, to int32 say"
        )
    if name in ("BAND", "BOR", "BXOR") and dtype not in _INTEGERS:
        raise InvalidTypeError(f"ReduceOp.{name} works on the bits of integers and bool, not on {dtype}")
    if name in ("MIN", "MAX") and dtype in _COMPLEX:
        raise InvalidTypeError(f"ReduceOp.{name} needs an order, which complex numbers have not: got {dtype}")
    if name in ("AVG", "PREMUL_SUM") and dtype in _INTEGERS:
        raise InvalidTypeError(f"ReduceOp.{name} makes fractions, which {dtype} cannot hold: use SUM, or a float type")
    if name == "PREMUL_SUM":
        reduce_op_factor(op)


def check_separate(
    outputs: Tensor | Sequence[Tensor],
    name: str,
    inputs: Tensor | Sequence[Tensor] = (),
    inputs_name: str = "",
    *,
    in_place: int | None = None,
) -> None:
    """Refuse outputs that share memory with each other, as in ``[buffer] * size``, or with an input.

    They would be written over one another, or before they are read. ``in_place`` is the rank whose input may be its
    output, or, of a single tensor and a list, the other way round. InvalidValueError names the two. Of tensors that
    are not contiguous only the beginnings are compared.
    """
    spans = sorted((*_spans(outputs, name, is_output=True), *_spans(inputs, inputs_name, is_output=False)))
    furthest: list[_Span | None] = [None, None]  # of those before: the input and the output that reach furthest
    for span in spans:
        for other in furthest if span.is_output else furthest[1:]:
            if other is not None and other.end > span.begin and not _are_in_place(span, other, in_place):
                one, two = sorted((span, other), key=lambda each: (not each.is_output, -each.place))
                raise InvalidValueError(f"{one.label} and {two.label} share memory: each needs its own")
        before = furthest[span.is_output]
        if before is None or span.end > before.end:
            furthest[span.is_output] = span


class _Span(NamedTuple):
    """The memory of a tensor; ``place`` is that in its list, -1 of a single one."""

    begin: int
    end: int
    place: int
    is_output: bool
    name: str

    @property
    def label(self) -> str:
        return self.name if self.place < 0 else f"{self.name}[{self.place}]"


def _spans(tensors: Tensor | Sequence[Tensor], name: str, *, is_output: bool) -> Iterator[_Span]:
    listed = [(-1, tensors)] if isinstance(tensors, Tensor) else enumerate(tensors)
    for index, tensor in listed:
        if tensor.numel():
            begin = tensor.data_ptr()
            size_bytes = tensor.nbytes if tensor.is_contiguous() else tensor.element_size()
            yield _Span(begin, begin + size_bytes, index, is_output, name)


def _are_in_place(one: _Span, other: _Span, rank: int | None) -> bool:
    is_same = one.is_output != other.is_output and (one.begin, one.end) == (other.begin, other.end)
    return is_same and rank is not None and {one.place, other.place} == {-1, rank}

"""Apply a reduce operation to the elements of CPU tensors, without waking torch's thread pool.

Every call of torch gets at most ``GRAIN`` elements: beyond that, torch would start an OpenMP pool for this thread.
Inference mode allows in-place arithmetic on leaves that require gradients and on tensors made in inference mode, as
``torch.distributed`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ...errors import InvalidTypeError, InvalidValueError
from ...wire.memory.copying import copy_memory

GRAIN = 32768
COPY_BYTES = 16 * 1024  # what torch copies no slower
AnyReduceOp = ReduceOp | ReduceOp.RedOpType  # ReduceOp.SUM is of the second type

_FUNCTIONS: dict[str, Any] = {
    "SUM": torch.add,  # on bool this is a logical or, as in NCCL; Gloo adds bytes and leaves a bool that holds 3
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def reduce_op_name(op: AnyReduceOp) -> str:
    """Return ``"SUM"``, ``"AVG"`` and so on, for ``ReduceOp.SUM`` as for an instance of ReduceOp."""
    kind = op if isinstance(op, ReduceOp.RedOpType) else getattr(op, "op", None)
    if not isinstance(kind, ReduceOp.RedOpType):
        raise InvalidTypeError(f"op must be a torch.distributed.ReduceOp such as ReduceOp.SUM, got {op!r}")
    return str(kind.name)


def reduce_op_factor(op: AnyReduceOp) -> float:
    """Return the factor of a PREMUL_SUM; ValueError when it carries none."""
    state: Any = None if isinstance(op, ReduceOp.RedOpType) else op.__getstate__()  # type: ignore[attr-defined]
    factor = state[1] if isinstance(state, tuple) else None
    if factor is None:
        raise InvalidValueError("ReduceOp.PREMUL_SUM has no factor: make it with one, as an instance of ReduceOp")
    return float(factor)  # a number, or a tensor of one


def combine(left: Tensor, right: Tensor, out: Tensor, op: AnyReduceOp) -> None:
    """Set ``out`` to ``left op right``, elementwise. All are flat, of one length; ``out`` may be one of the others."""
    assert left.shape == right.shape == out.shape, f"{list(left.shape)}, {list(right.shape)}, {list(out.shape)}"
    function = _FUNCTIONS[reduce_op_name(op)]
    with torch.inference_mode():
        if out.numel() <= GRAIN:
            function(left, right, out=out)
            return
        for part, other, into in grains(left, right, out):
            function(part, other, out=into)


def finalize(tensor: Tensor, op: AnyReduceOp, num_ranks: int) -> None:
    """Turn the combination of all ranks' elements into the result: an AVG is divided, the others are ready."""
    if reduce_op_name(op) != "AVG":
        return
    with torch.inference_mode():
        for (part,) in grains(tensor):
            part.div_(num_ranks)


def premultiply(tensor: Tensor, out: Tensor, factor: float) -> None:
    """Set ``out``, which may be ``tensor``, to the tensor times the factor of a PREMUL_SUM."""
    assert tensor.shape == out.shape, f"{list(tensor.shape)}, {list(out.shape)}"
    with torch.inference_mode():
        for part, into in grains(tensor, out):
            torch.mul(part, factor, out=into)


def copy(source: Tensor, into: Tensor) -> None:
    """Copy the elements of a flat tensor; nothing to do when both are the same memory."""
    assert source.shape == into.shape, f"{list(source.shape)}, {list(into.shape)}"
    if source.data_ptr() == into.data_ptr():
        return
    size_bytes = source.numel() * source.element_size()
    if size_bytes > COPY_BYTES:
        copy_memory(into.data_ptr(), source.data_ptr(), size_bytes)
        return
    with torch.inference_mode():
        into.copy_(source)


def reduce_parts(parts: Sequence[Tensor], into: Sequence[Tensor], op: AnyReduceOp) -> None:
    """Combine flat tensors of one length in their order; the result goes to each of ``into``, which may be parts."""
    name, num_parts = reduce_op_name(op), len(parts)
    function, (target, *copies) = _FUNCTIONS[name], into
    is_read_late = any(part.data_ptr() == target.data_ptr() for part in parts[2:])
    with torch.inference_mode():
        for grain in grains(*parts, target, *copies):
            first, second, *rest = grain[:num_parts]
            result, *others = grain[num_parts:]
            total = torch.empty_like(result) if is_read_late else result
            function(first, second, out=total)
            for part in rest:
                function(total, part, out=total)
            if name == "AVG":
                total.div_(num_parts)
            if is_read_late:
                result.copy_(total)
            for other in others:  # now, while it is in the processor's cache
                other.copy_(result)


def grains(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut flat tensors of one length into parts that torch computes on one thread."""
    if tensors[0].numel() <= GRAIN:
        return iter((tensors,))
    return zip(*(tensor.split(GRAIN) for tensor in tensors), strict=True)  # type: ignore[no-untyped-call]

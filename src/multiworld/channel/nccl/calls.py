"""How each collective is called on an NCCL process group, and what NCCL cannot do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from ...errors import InvalidTypeError
from ..collectives.reduction import reduce_op_name
from ..payload.tensors import as_bytes
from ..stream_channel.channel import Collective

c10d: Any = distributed_c10d  # of whose options some are not in torch.distributed
REDUCIBLE = frozenset(
    (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
)
OPS = frozenset(("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"))
COMPLEX_OPS = frozenset(("SUM", "AVG", "PREMUL_SUM"))  # on pairs of real numbers


def check_reduction(op: Any, dtype: torch.dtype) -> None:
    """Raise TypeError for what NCCL cannot reduce."""
    if reason := why_not_reduced(reduce_op_name(op), dtype):
        raise InvalidTypeError(reason)


def why_not_reduced(name: str, dtype: torch.dtype) -> str:
    """Say why NCCL has not that operation for elements of that type; empty if it has."""
    if dtype not in REDUCIBLE:
        return f"NCCL cannot reduce {dtype}: convert the tensor first, for example to torch.int32"
    if name not in OPS:
        return f"NCCL has no ReduceOp.{name}; it has {', '.join(sorted(OPS))}"
    if dtype.is_complex and name not in COMPLEX_OPS:
        return f"ReduceOp.{name} of {dtype} needs complex arithmetic, which NCCL has not"
    return ""


def launch_collective(call: Collective, tensors: list[Tensor], rank: int, group: Any) -> Any:
    """Call the group for ``call`` with tensors laid out as its own are; return the work.

    What only moves goes as bytes, so that every dtype can.
    """
    first, rest, size = tensors[0], tensors[1:], group.size()
    if call.kind in ("all_reduce", "barrier"):
        return group.allreduce([_numbers(first)], _options(c10d.AllreduceOptions, reduceOp=call.op))
    if call.kind == "reduce":
        options = _options(c10d.ReduceOptions, reduceOp=call.op, rootRank=call.root)
        return group.reduce([_numbers(first)], options)
    if call.kind == "reduce_scatter":
        options = _options(c10d.ReduceScatterOptions, reduceOp=call.op)
        return group.reduce_scatter([_numbers(first)], [[_numbers(tensor) for tensor in rest]], options)
    if call.kind == "broadcast":
        return group.broadcast([as_bytes(first)], _options(c10d.BroadcastOptions, rootRank=call.root))
    if call.kind == "all_gather":
        return group.allgather([_all_bytes(rest)], [as_bytes(first)], _options(c10d.AllgatherOptions))
    if call.kind == "gather":
        outputs = [_all_bytes(rest)] if rank == call.root else []
        return group.gather(outputs, [as_bytes(first)], _options(c10d.GatherOptions, rootRank=call.root))
    if call.kind == "scatter":
        inputs = [_all_bytes(rest)] if rank == call.root else []
        return group.scatter([as_bytes(first)], inputs, _options(c10d.ScatterOptions, rootRank=call.root))
    assert call.kind == "all_to_all", call.kind
    return group.alltoall(_all_bytes(tensors[:size]), _all_bytes(tensors[size:]), _options(c10d.AllToAllOptions))


def _options(kind: Any, **fields: Any) -> Any:
    options = kind()
    for name, value in fields.items():
        setattr(options, name, value)
    if hasattr(options, "asyncOp"):  # else, from torch 2.7, it would run on the caller's stream and return no work
        options.asyncOp = True
    return options


def _numbers(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _all_bytes(tensors: list[Tensor]) -> list[Tensor]:
    return [as_bytes(tensor) for tensor in tensors]

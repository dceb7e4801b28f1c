"""Operators on remote tensors before autograd and PyTorch's decompositions: they take the ways of plain tensors.

PyTorch's C++ asks whether an operand is of a subclass, and goes other ways then: these round otherwise, or end on the
master. So our tensors have a dispatch key that no other tensors have (``wrapping.KEY``), and a few operators have a
kernel for it. The others do not see the key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from .gradient_formulas import MaskedFill, Product
from .local_data import can_take
from .moving import values_of
from .process_groups import refuse_process_groups
from .remote_tensor import RemoteTensor
from .storage import set_tensor
from .wrapping import KEY, KEY_NAME

aten = torch.ops.aten
_BELOW: Final = torch._C._dispatch_keyset_full_after(KEY)
_AUTOCAST: Final = torch._C.DispatchKey.AutocastCPU
_lock: Final = threading.Lock()  # one thread sets the kernels
_libraries: Final[list[torch.library.Library]] = []  # kernels last as long as their library


def install() -> None:
    """Let operators on remote tensors come here first, in this process. Again: nothing."""
    with _lock:
        if _libraries:
            return
        library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for function, kernel in _KERNELS.items():
            library.impl(function, kernel, KEY_NAME, with_keyset=True)  # type: ignore[no-untyped-call]
        _libraries.append(library)
        refuse_process_groups(_libraries)


def _matmul(keys: Any, one: Any, other: Any) -> Any:
    return aten.matmul.default.redispatch(keys & _BELOW, one, _unfolded(keys, one, other))


def _matmul_out(keys: Any, one: Any, other: Any, *, out: Any) -> Any:
    return aten.matmul.out.redispatch(keys & _BELOW, one, _unfolded(keys, one, other), out=out)


def _unfolded(keys: Any, one: Any, other: Any) -> Any:
    """Of a batch times a batch of one PyTorch makes one matrix product for subclasses, and a batch of them else."""
    if other.dim() != 3 or other.shape[0] != 1 or one.dim() != 3 or one.shape[0] == 1 or other.requires_grad:
        return other
    if keys.has(_AUTOCAST):  # it casts, and comes here again
        return other
    return other.expand(one.shape[0], -1, -1)


def _prod(keys: Any, factors: Any, *, dtype: torch.dtype | None = None) -> Any:
    if _is_recorded(factors):
        return Product.apply(factors, (), False, dtype)  # type: ignore[no-untyped-call]
    return aten.prod.default.redispatch(keys & _BELOW, factors, dtype=dtype)


def _prod_of_dim(keys: Any, factors: Any, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if _is_recorded(factors):
        return Product.apply(factors, (dim,), keepdim, dtype)  # type: ignore[no-untyped-call]
    return aten.prod.dim_int.redispatch(keys & _BELOW, factors, dim, keepdim, dtype=dtype)


def _masked_fill(keys: Any, target: Any, mask: Any, value: Any) -> Any:
    if _is_recorded(value):
        return MaskedFill.apply(target, mask, value)  # type: ignore[no-untyped-call]
    return aten.masked_fill.Tensor.redispatch(keys & _BELOW, target, mask, value)


def _is_recorded(tensor: Any) -> bool:
    """Whether autograd records what is done with a remote tensor, and nothing else does."""
    if type(tensor) is not RemoteTensor or not tensor.requires_grad or not torch.is_grad_enabled():
        return False
    return not _is_transformed()


def _is_transformed() -> bool:
    """Whether forward derivatives or a transform of ``torch.func`` need what PyTorch does itself."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _is_watched(tensor: Any) -> bool:
    """Whether vectors are computed beside values, for derivatives: for subclasses they always are, by other kernels."""
    return (tensor.requires_grad and torch.is_grad_enabled()) or _is_transformed()


def _eigvals(keys: Any, matrix: Any) -> Any:
    if _is_watched(matrix):
        return aten.linalg_eigvals.default.redispatch(keys & _BELOW, matrix)
    return aten._linalg_eigvals.default(matrix)


def _eigvalsh(keys: Any, matrix: Any, UPLO: str = "L") -> Any:  # noqa: N803  # its name in PyTorch
    if _is_watched(matrix):
        return aten.linalg_eigvalsh.default.redispatch(keys & _BELOW, matrix, UPLO)
    return aten._linalg_eigh.default(matrix, UPLO, False)[0]


def _svdvals(keys: Any, matrix: Any, *, driver: str | None = None) -> Any:
    if _is_watched(matrix):
        return aten.linalg_svdvals.default.redispatch(keys & _BELOW, matrix, driver=driver)
    return aten._linalg_svd.default(matrix, False, False, driver=driver)[1]


def _tensor_split(keys: Any, tensor: Any, places: Any, dim: int = 0) -> Any:
    """PyTorch reads the memory of a tensor that says where to split. A sync point."""
    if type(places) is RemoteTensor:
        return torch.tensor_split(tensor, values_of(places, "tensor_split"), dim)
    return aten.tensor_split.tensor_indices_or_sections.redispatch(keys & _BELOW, tensor, places, dim)


def _rank_by(function: Any) -> Callable[..., Any]:
    def matrix_rank(keys: Any, matrix: Any, *args: Any, **kwargs: Any) -> Any:
        """For matrices without elements PyTorch returns zeros of the master."""
        found = function.redispatch(keys & _BELOW, matrix, *args, **kwargs)
        if type(found) is RemoteTensor or type(matrix) is not RemoteTensor:
            return found
        return matrix.new_zeros(found.shape, dtype=found.dtype)

    return matrix_rank


_RANKS: Final = [
    getattr(aten.linalg_matrix_rank, name) for name in ("default", "tol_tensor", "atol_rtol_float", "atol_rtol_tensor")
]
_KERNELS: Final[dict[Any, Callable[..., Any]]] = {
    aten.set_.source_Tensor_storage_offset: set_tensor,
    aten.matmul.default: _matmul,
    aten.matmul.out: _matmul_out,
    aten.prod.default: _prod,
    aten.prod.dim_int: _prod_of_dim,
    aten.masked_fill.Tensor: _masked_fill,
    aten.linalg_eigvals.default: _eigvals,
    aten.linalg_eigvalsh.default: _eigvalsh,
    aten.linalg_svdvals.default: _svdvals,
    aten.tensor_split.tensor_indices_or_sections: _tensor_split,
    aten._has_compatible_shallow_copy_type.default: can_take,
    **{each: _rank_by(each) for each in _RANKS},
}

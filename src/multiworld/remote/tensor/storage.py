"""``tensor.untyped_storage()``: PyTorch identifies memory by it. There is none here to read or write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError
from ..protocol.template import Keywords

_ELEMENTS: Final = "__getitem__ __setitem__ __iter__ tolist fill_ copy_ byteswap _byteswap"
_COPIES: Final = "__copy__ __deepcopy__ __reduce__ __reduce_ex__ clone cpu cuda hpu mps to _to new pin_memory"
_DTYPES: Final = """bfloat16 bool byte char complex_double complex_float double float half int long short
    float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"""
_MEMORY: Final = """data_ptr resize_ share_memory_ _share_cuda_ _share_fd_cpu_ _share_filename_cpu_ _shared_incref
    _shared_decref _get_shared_fd _write_file _set_from_file _swap_data_ptr_ _resize_with_addr_"""


class StorageOfNode(torch.UntypedStorage):
    """``node``: whose memory it stands for. It has a size. By its label, *meta*, no local tensor takes it.

    All that reads or writes elements raises UnsupportedOperationError: PyTorch would do so at address 0.
    """

    node: int

    def __repr__(self) -> str:
        return f"<StorageOfNode node={self.node} bytes={self.nbytes()}>"

    __str__ = __repr__


def _refused(name: str) -> Callable[..., NoReturn]:
    def method(self: StorageOfNode, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedOperationError(
            f"untyped_storage().{name}", f"the memory is on node {self.node}", "Call fetch() of the tensor first"
        )

    return method


for _name in f"{_ELEMENTS} {_COPIES} {_DTYPES} {_MEMORY}".split():
    setattr(StorageOfNode, _name, _refused(_name))


def storage_of(tensor: Any) -> StorageOfNode:
    """Return what stands for the memory of a remote tensor: the same object each time, unless its size has changed."""
    num_bytes = Tensor.untyped_storage(tensor).nbytes()
    storage: StorageOfNode | None = getattr(tensor, "_storage", None)
    if storage is None or storage.nbytes() != num_bytes:
        storage = StorageOfNode(num_bytes, device="meta")  # type: ignore[no-untyped-call]
        storage.node = tensor.get_node()
        tensor._storage = storage
    return storage


def refuse_storage(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> NoReturn:
    """``remote.set_(storage)``: raises UnsupportedOperationError."""
    raise UnsupportedOperationError(
        "set_",
        f"a tensor of node {args[0].get_node()} can't take a storage, which is memory of the master or stands for some",
        "Assign a tensor: t.data = nodes[1].send(tensor), or take a view: t.as_strided(...)",
    )


def set_tensor(keys: Any, target: Any, source: Any, *shape: Any) -> Any:
    """The kernel of ``set_`` with a tensor, an offset and a shape. One of the two is remote."""
    remote = source if hasattr(source, "get_node") else target
    raise UnsupportedOperationError(
        "set_",
        f"memory on node {remote.get_node()} can't be taken so",
        "Take a view, as_strided(...), or fetch() first",
    )

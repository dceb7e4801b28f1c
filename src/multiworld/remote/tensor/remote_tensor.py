"""``RemoteTensor``: a tensor that lives on a node, used like any other; its values come when somebody asks for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..protocol.specs import Spec, spec_of
from ..session.open_connections import beside
from ..session.session import Session
from . import conversion, copying
from .devices import device_of, moved_to, new_tensor
from .fast import fastest_dispatch, fastest_giving_up
from .flattening import flattened, unflattened
from .foreseeing import meta_of
from .gradients import grad_of, set_grad
from .legacy_new import new
from .memory import TO_SAVE, memory_error, without_memory
from .metadata import set_data
from .moving import MASTER, Place, moved, values_of
from .naming import DeviceName, named
from .numpy_operands import array_ufunc
from .storage import storage_of
from .wrapping import LABEL


class RemoteTensor(Tensor):
    """Operators on it run on its node, in the order in which they were issued here; none waits for the node.

    What needs values waits: ``fetch``, ``item``, ``tolist``, ``print``, and operators whose outcome depends on data.
    """

    _session: Session
    _id: int
    _spec: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    __torch_dispatch__ = classmethod(fastest_dispatch())
    __del__ = fastest_giving_up()

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        values = values_of(self, "repr")
        return f"{repr(values)[:-1]}, node={self._session.number})"

    # ---- where it is

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """``remote:N`` if the program uses the device name; else the label of the wrapper here, ``cpu``."""
        return named(self._session.number) if DeviceName.in_use else LABEL

    @property
    def spec(self) -> Spec:
        """Its shape, strides, dtype, and its device on the node."""
        return spec_of(self._spec)

    def get_node(self) -> int:
        """Return the number of its node."""
        return self._session.number

    def get_device(self) -> int:
        """Return the index of its GPU on the node; -1: it is in the memory of the CPU."""
        device = torch.device(self.spec.device)
        return -1 if device.type == "cpu" else device.index or 0

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        set_data(self, value)

    @property
    def grad(self) -> Any:
        return grad_of(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        set_grad(self, value)

    @grad.deleter
    def grad(self) -> None:
        set_grad(self, None)

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any
    ) -> Any:
        """As PyTorch's, on the node of this tensor unless ``device`` says otherwise."""
        return new_tensor(self, data, dtype, device, options)

    def new(self, *args: Any) -> Any:  # type: ignore[override]
        """As PyTorch's, on the node of this tensor: an empty tensor of a shape, or one of data."""
        return new(self, args)

    # ---- to other places

    to = conversion.to

    def to_node(self, number: int) -> Any:
        """Return a copy on another node; itself if it is there."""
        session = beside(self._session, number)
        return self if session is self._session else moved(type(self), self, Place(session), "to_node")

    def cuda(
        self, device: int | str | torch.device | None = None, non_blocking: bool = False, memory_format: Any = None
    ) -> RemoteTensor:
        """Return a copy on a GPU of its node, by default on the first; itself if it is there.

        On a node without that GPU the copy fails lazily, at the first fetch that needs it.
        """
        return moved_to(self, device_of(0 if device is None else device))  # type: ignore[no-any-return]

    def cpu(self, memory_format: Any = None) -> Any:
        """Wait, and return a local copy: its gradient goes back to the node."""
        return moved(type(self), self, MASTER, "cpu")

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        return copying.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """It is pickled and saved as a local tensor with its values."""
        return copying.reduced(self, protocol)

    __tensor_flatten__ = flattened
    __tensor_unflatten__ = staticmethod(unflattened)

    @property
    def _like(self) -> Tensor:
        """A tensor without data of the same shape."""
        return meta_of(self.spec)

    # ---- operators

    def __matmul__(self, other: Any) -> Any:
        """The product of two matrices is ``mm``, as PyTorch makes it: ``matmul`` itself takes twice as long here."""
        if type(other) is RemoteTensor and self.dim() == 2 == other.dim():
            return torch.mm(self, other)
        return super().__matmul__(other)

    # ---- its values

    def fetch(self) -> Tensor:
        """Wait, and return a local copy. Raises RemoteOperationError, NodeDeadError."""
        return values_of(self)

    async def fetched(self) -> Tensor:
        """As ``fetch``, for a coroutine: the event loop goes on meanwhile."""
        return await self._session.fetch_async(self._id, self.spec)

    def __format__(self, form: str) -> str:
        return self.item().__format__(form) if self.dim() == 0 else super().__format__(form)  # type: ignore[no-untyped-call]

    def __bool__(self) -> bool:
        return bool(self._as_number())

    def __int__(self) -> int:
        return int(self._as_number())

    def __index__(self) -> int:
        return int(self._as_number().__index__())

    def __float__(self) -> float:
        return float(self._as_number())

    def __complex__(self) -> complex:
        return complex(self._as_number())

    def _as_number(self) -> Any:
        """``torch.tensor([t[0], t[1]])`` hides our tensors from PyTorch, whose own conversions would read here."""
        return values_of(self, "item") if self.numel() == 1 else meta_of(self.spec)

    def tolist(self) -> Any:
        return values_of(self, "tolist").tolist()

    def dist_recv(self) -> Tensor:
        """As ``fetch``: its name in the original design."""
        return self.fetch()

    # ---- what needs memory that is not here

    def untyped_storage(self) -> Any:
        """What stands for its memory: it has a size and an identity, and no elements."""
        return storage_of(self)

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return values_of(self, "numpy").numpy(force=True)
        raise memory_error(self, "numpy()")

    data_ptr = without_memory("data_ptr()", TO_SAVE)
    const_data_ptr = without_memory("const_data_ptr()")
    mutable_data_ptr = without_memory("mutable_data_ptr()")
    pin_memory = without_memory("pin_memory()")
    storage = without_memory("storage()", TO_SAVE)
    share_memory_ = without_memory("share_memory_()")
    apply_ = without_memory("apply_()")
    __array__ = without_memory("numpy.asarray()")
    __array_ufunc__ = array_ufunc
    __dlpack__ = without_memory("__dlpack__()")
    __dlpack_device__ = without_memory("__dlpack_device__()")

"""``RemoteTensor``: a tensor that lives on a node, used like any other; its values come when somebody asks for them."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError
from ..protocol.specs import Spec, spec_of
from ..session.session import Session
from .devices import device_of, moved_to
from .dispatch import dispatch
from .moving import values_of


class RemoteTensor(Tensor):
    """Operators on it run on its node, in the order in which they were issued here; none waits for the node.

    What needs values waits: ``fetch``, ``item``, ``tolist``, ``print``, and operators whose outcome depends on data.
    """

    _session: Session
    _id: int
    _spec: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    __torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]

    def __del__(self) -> None:
        try:
            self._session.free(self._id)
        except AttributeError:  # it was never given an id
            return

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        values = values_of(self, "repr")
        return f"{repr(values)[:-1]}, node={self._session.number})"

    # ---- where it is

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

    def cuda(
        self, device: int | str | torch.device | None = None, non_blocking: bool = False, memory_format: Any = None
    ) -> RemoteTensor:
        """Return a copy on a GPU of its node, by default on the first; itself if it is there.

        On a node without that GPU the copy fails lazily, at the first fetch that needs it.
        """
        return moved_to(self, device_of(0 if device is None else device))  # type: ignore[no-any-return]

    # ---- its values

    def fetch(self) -> Tensor:
        """Wait, and return a local copy. Raises RemoteOperationError, NodeDeadError."""
        return values_of(self.detach())

    async def fetched(self) -> Tensor:
        """As ``fetch``, for a coroutine: the event loop goes on meanwhile."""
        return await self._session.fetch_async(self._id, self.spec)

    def tolist(self) -> Any:
        return values_of(self, "tolist").tolist()

    def dist_recv(self) -> Tensor:
        """As ``fetch``: its name in the original design."""
        return self.fetch()

    # ---- what needs memory that is not here

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return values_of(self, "numpy").numpy(force=True)
        raise self._without_memory("numpy()")

    def data_ptr(self) -> int:
        raise self._without_memory("data_ptr()")

    def __array__(self, dtype: Any = None) -> NoReturn:
        raise self._without_memory("numpy.asarray()")

    def _without_memory(self, what: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            what, f"the tensor lives on node {self._session.number}, and has no memory here", "Call fetch() first"
        )

"""``torch.load(map_location="remote:1")``: what a file has goes to a node; tensors that share memory share it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._prims_common import make_contiguous_strides_for

from ..errors import UnsupportedOperationError
from ..protocol.template import Keywords
from ..session.open_connections import session_of
from ..tensor.metadata import set_data
from ..tensor.moving import send
from ..tensor.naming import named, node_of
from ..tensor.remote_tensor import RemoteTensor
from ..tensor.special import SPECIAL

PRIORITY: Final = 15
"""Before PyTorch's own readers of locations, the first of which has 10."""
_MEMORY: Final = "a remote tensor can't have memory of the master"


class LoadedStorage(torch.UntypedStorage):
    """Bytes of a file that belong on a node. ``node``: its number. ``sent``: these bytes there, once needed."""

    node: int
    sent: Any = None

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return named(self.node)

    def on_node(self) -> Any:
        """Return the bytes as a tensor of the node, the same each time."""
        if self.sent is None:
            local = torch.empty(0, dtype=torch.uint8).set_(self, 0, (self.nbytes(),), (1,))
            self.sent = send(RemoteTensor, session_of(self.node), local)
        return self.sent


def register_loading() -> None:
    """Have PyTorch ask us for locations of the form ``remote:N``."""
    torch.serialization.register_package(PRIORITY, lambda storage: None, _restored)
    SPECIAL[torch.ops.aten.set_.source_Storage_storage_offset] = _set_storage


def _restored(storage: Any, location: str) -> LoadedStorage | None:
    if not location.startswith("remote"):
        return None
    node = node_of(location)
    assert node is not None
    session_of(node)
    loaded = LoadedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
    loaded.copy_(storage)
    loaded.node = node
    return loaded


def _set_storage(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> Tensor:
    """Let a tensor be a view of what was loaded. PyTorch leaves the strides out where there are none."""
    tensor, storage, offset, size = args[:4]
    if not isinstance(storage, LoadedStorage):
        raise UnsupportedOperationError(str(func), _MEMORY, "Write t.data = other.data, with a tensor of the node")
    stride = (args[4] if len(args) > 4 else None) or make_contiguous_strides_for(size)
    set_data(tensor, storage.on_node().view(tensor.dtype).as_strided(size, stride, offset))
    return tensor  # type: ignore[no-any-return]

"""``tensor.dist_send()``: a method that every local tensor has, from ``init_master_worker`` to its end.

It is the one thing that this package adds to a class of PyTorch's. See ``docs/decisions/046-original-names.md``.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...remote.master.node import Node
from ...remote.tensor.remote_tensor import RemoteTensor

NAME = "dist_send"


def add_dist_send(current_node: Callable[[], Node]) -> None:
    """Give ``torch.Tensor`` the method. Raises RuntimeError if it has another of that name."""
    if hasattr(Tensor, NAME):
        raise RuntimeError(f"torch.Tensor has a method {NAME} already: another library has added it")

    def dist_send(self: Tensor) -> RemoteTensor:
        """Return a copy on the current node, where ``dist_recv`` gets it back."""
        if isinstance(self, RemoteTensor):
            raise TypeError(f"dist_send: this tensor is on node {self.get_node()} already")
        return current_node().send(self)

    setattr(Tensor, NAME, dist_send)


def remove_dist_send() -> None:
    if hasattr(Tensor, NAME):
        delattr(Tensor, NAME)

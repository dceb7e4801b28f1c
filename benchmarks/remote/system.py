"""What a system under test offers to the scenarios, ours and the peers' alike. No ``multiworld``: peers lack it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

__all__ = ["SHAPE", "START_S", "Deployer", "System"]

SHAPE = (20, 20)
START_S = 120.0


class System(Protocol):
    """Nodes, numbered from 0, each with a tensor of ``SHAPE`` that begins as zeros, and one of ones.

    ``burst``: how many additions are issued before one waits for them. ``deaths``: what a wait for a
    dead node raises.
    """

    burst: int
    deaths: tuple[type[Exception], ...]

    def add(self, node: int, times: int) -> None:
        """Have the node replace its tensor by the sum of both, again and again. Does not wait."""

    def value(self, node: int, timeout_s: float) -> float:
        """Fetch the node's tensor and return its first element: all additions that were issued have been made."""

    def add_and_fetch(self, node: int) -> Tensor:
        """Make one addition and return the new sum: the fastest way that the system has."""

    def send(self, node: int, tensor: Tensor) -> None:
        """Give the node a tensor. Returns when the node has it."""

    def fetch(self, node: int) -> Tensor:
        """Return the tensor that was sent last."""

    def pid(self, node: int) -> int: ...

    def noticed_s(self) -> float:
        """When (``perf_counter``) the system told, outside of any call, that a node is dead; NaN if it did not."""


class Deployer(Protocol):
    """Brings nodes up for the time of a ``with`` block. ``variant`` names a transport, or one of several interfaces."""

    def __call__(self, num_nodes: int, variant: str) -> AbstractContextManager[System]: ...

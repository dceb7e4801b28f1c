"""What a collective needs from a channel: point-to-point messages of one call, and somewhere to do arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ...wire.operation import Operation

__all__ = ["Barrier", "Port", "SharedSpace"]


class SharedSpace(Protocol):
    """Memory that all ranks map: an area of each, in two halves."""

    @property
    def half_bytes(self) -> int:
        """The size of a half, a multiple of 64."""

    def area(self, rank: int, half: int, like: Tensor, offset_bytes: int = 0) -> Tensor:
        """Return a part of a rank's area as a flat tensor of the length and dtype of another."""


class Barrier(Protocol):
    """Lets the ranks of one call wait for each other again and again."""

    async def meet(self) -> None:
        """Return once every rank has come here, as often as we have."""


class Port(Protocol):
    """The messages of one collective call, private to it: those to one peer arrive in the order of their sending.

    Tensors are contiguous, on the CPU, and may have zero elements. A receive is as large as the message that it meets.
    When the collective ends with an error, the channel cancels whatever operations of its port are still open.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def send(self, tensor: Tensor, dst: int) -> Operation[None]:
        """Start a send; done when the tensor's memory may be changed again, perhaps not before the peer receives it."""

    def recv(self, tensor: Tensor, src: int) -> Operation[None]:
        """Start a receive; until it is done the tensor's content is undefined."""

    def share(self) -> Operation[SharedSpace | None]:
        """Take the memory that all ranks share, for this call alone; None: there is none, which all ranks agree on."""

    async def barrier(self) -> Barrier:
        """Return once every rank has come here; what they wait for each other with from then on."""

    def compute(self, work: Callable[[], None], size_bytes: int) -> Operation[None]:
        """Run arithmetic over that many bytes: at once when it is little, else on a worker thread.

        After it was cancelled, it no longer runs.
        """

"""What a collective needs from a channel: point-to-point messages of one call, and somewhere to do arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from torch import Tensor

from ...wire.progress.operation import Operation


class SharedSpace(Protocol):
    """Memory that all ranks map, as one call sees it: each rank has an area, whose two halves it fills in turn.

    A rank writes into its half, shows it, and reads what the others have shown::

        begin_piece │ write │ show │ read │ begin_piece │ write into the other half │ show │ …

    A rank that writes piece ``k + 2`` has shown piece ``k + 1``, as have all by then, so all have read piece ``k``.
    That holds from one call to the next, too.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def half_bytes(self) -> int:
        """The size of a half, a multiple of 64."""

    def begin_piece(self) -> None:
        """Go to the other half of our own area."""

    async def show(self) -> None:
        """Return once every rank has shown its half, and ours can be read by all."""

    async def meet(self) -> None:
        """Return once every rank has come here, with what it wrote since it showed its half."""

    def area(self, rank: int, like: Tensor, offset_bytes: int = 0) -> Tensor:
        """Return a part of a rank's present half as a flat tensor of the length and dtype of another.

        The offset is a multiple of 64.
        """


SharedWork = Callable[[SharedSpace], Coroutine[Operation[Any], None, None]]


class Port(Protocol):
    """The messages of one collective call, private to it: those to one peer arrive in the order of their sending.

    Tensors are contiguous, on the CPU, and may have zero elements. A receive is as large as the message that it meets.
    When the collective ends with an error, the channel cancels the operations of its port that are still open.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def send(self, tensor: Tensor, dst: int) -> Operation[None]:
        """Start a send; done when the tensor's memory may be changed again, perhaps not before the peer receives it."""

    def recv(self, tensor: Tensor, src: int) -> Operation[None]:
        """Start a receive; until it is done the tensor's content is undefined."""

    async def share(self, work: SharedWork, size_bytes: int) -> bool:
        """Let ``work`` move about so many bytes in the memory that all ranks share, which this call has for itself.

        False: there is none, which all ranks agree on, and nothing was done. Once this has been called, the turn of
        this call is fixed. ``work`` may compute as it likes: where it must not block, little is to be done.
        """

    def compute(self, work: Callable[[], None], size_bytes: int) -> Operation[None]:
        """Run arithmetic over that many bytes: at once when it is little, else on a worker thread.

        After it was cancelled, it no longer runs.
        """

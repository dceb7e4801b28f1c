"""Cut flat tensors into pieces that travel one after the other, and keep receives for them posted ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from ...wire.progress.operation import Operation
from .port import Port
from .tuning import Tuning

PIECE_BYTES = 512 * 1024


def flatten(tensor: Tensor) -> Tensor:
    """Return the same memory as ``[numel]``, outside of autograd."""
    return tensor.detach().view(-1)


def size_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def num_chunks(transfer_bytes: int, tuning: Tuning) -> int:
    """Return in how many pieces to move that many bytes; at least one, so that empty tensors meet their peers too."""
    return max(1, min(tuning.max_chunks, -(-transfer_bytes // tuning.chunk_bytes)))


def split_evenly(tensor: Tensor, num_parts: int) -> list[Tensor]:
    """Return exactly that many consecutive views of a flat tensor, whose lengths differ by one at most."""
    numel = tensor.numel()
    bounds = [numel * part // num_parts for part in range(num_parts + 1)]
    return [tensor[start:end] for start, end in pairwise(bounds)]


def rotating_buffers(pieces: Sequence[Tensor], num_buffers: int) -> list[Tensor]:
    """Return a buffer like each piece; piece ``k`` shares its memory with piece ``k + num_buffers``."""
    largest = max(piece.numel() for piece in pieces)
    num_buffers = min(num_buffers, len(pieces))
    memory = torch.empty(num_buffers * largest, dtype=pieces[0].dtype)
    starts = [index % num_buffers * largest for index in range(len(pieces))]
    return [memory[start : start + piece.numel()] for start, piece in zip(starts, pieces, strict=True)]


async def compute_in_pieces(port: Port, work: Callable[..., None], *tensors: Tensor) -> None:
    """Do elementwise work on flat tensors of one length.

    One piece is under way at a time: cancelling waits for no more than that, and other worlds get their turns between.
    """
    num_pieces = max(1, -(-size_bytes(tensors[0]) // PIECE_BYTES))
    for parts in zip(*(split_evenly(tensor, num_pieces) for tensor in tensors), strict=True):
        await port.compute(partial(work, *parts), size_bytes(parts[0]))


async def all_of(operations: Iterable[Operation[None]]) -> None:
    """Wait for operations that are under way side by side."""
    for operation in operations:
        await operation


class ReceiveWindow:
    """The receives from one peer into a row of buffers, a few of them posted ahead."""

    def __init__(self, port: Port, src: int, buffers: Sequence[Tensor], *, ahead: int) -> None:
        self._port, self._src, self._buffers = port, src, buffers
        self._held: dict[int, Operation[None]] = {}
        self._num_taken = 0
        self._num_posted = min(ahead, len(buffers))
        self._posted = deque(port.recv(buffer, src) for buffer in buffers[: self._num_posted])

    def hold(self, index: int, send: Operation[None]) -> None:
        """Do not receive into the buffer of that index before a send out of its memory is done."""
        self._held[index] = send

    async def next(self) -> Tensor:
        """Wait for the next buffer to be filled, post one more, and return the filled one."""
        await self._posted.popleft()
        self._num_taken += 1
        if self._num_posted < len(self._buffers):
            held = self._held.pop(self._num_posted, None)
            if held is not None:
                await held
            self._posted.append(self._port.recv(self._buffers[self._num_posted], self._src))
            self._num_posted += 1
        return self._buffers[self._num_taken - 1]

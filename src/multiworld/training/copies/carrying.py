"""Carry a snapshot's bytes from one member's memory to another's, on threads beside the training.

The receiver answers once the bytes lie in its memory, and their hash is right. Each message is small enough for a world
that is left meanwhile not to wait long for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...wire.progress.waiting import wait_blocking
from ...world.world import World
from ..errors import TrainingError
from ..recovery.state_parts import empty_bytes
from ..recovery.transfer import TAG as TRANSFER_TAG
from .memory import CopyDamagedError, MemoryFile, check
from .names import FileName

COPY_TAG, ANSWER_TAG, SERVING_TAG = TRANSFER_TAG + 1, TRANSFER_TAG + 2, TRANSFER_TAG + 3
CHUNK_BYTES = 4 << 20
LENGTH_BYTES = 8


class CopyRefusedError(TrainingError):
    """A partner could not keep a copy. Fields: ``place`` (its rank in the world), ``reason``."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(place, reason)
        self.place, self.reason = place, reason

    def __str__(self) -> str:
        return f"the process at place {self.place} could not keep the copy: {self.reason}"


def send(world: World, place: int, memory: Tensor | None, tag: int) -> None:
    """Send the bytes of a snapshot; None: there is none. Blocks. Raises the world's error."""
    length = 0 if memory is None else memory.numel()
    _send(world, place, _tensor(length.to_bytes(LENGTH_BYTES, "little")), tag)
    if memory is not None:
        for chunk in torch.split(memory, CHUNK_BYTES):
            _send(world, place, chunk, tag)


def send_copy(world: World, place: int, memory: Tensor | None) -> None:
    """Have a partner keep a copy. Blocks until it does. Raises the world's error, CopyRefusedError."""
    send(world, place, memory, COPY_TAG)
    if memory is not None and (refusal := _receive(world, place, ANSWER_TAG)).numel():
        raise CopyRefusedError(place, refusal.numpy().tobytes().decode())


def keep_copy(world: World, place: int, file: MemoryFile, name: FileName) -> None:
    """Keep what a member at ``place`` sends. Blocks. Raises the world's error. The sender hears of other failures."""
    length = _length(world, place, COPY_TAG)
    if not length:
        return
    memory, reason = None, ""
    try:
        memory = file.begin(name, length)[:length]
    except OSError as error:
        reason = error.strerror or str(error)
    _receive_into(world, place, memory, length, COPY_TAG)
    if memory is not None:
        try:
            check(memory, str(name))
            file.end()
        except (OSError, CopyDamagedError) as error:
            reason = str(error)
            file.remove()
    _send(world, place, _tensor(reason.encode()), ANSWER_TAG)


def receive(world: World, place: int) -> Tensor | None:
    """Return what a member serves from its memory, ``[n]`` uint8; None: it cannot. Blocks. Raises the world's error."""
    length = _length(world, place, SERVING_TAG)
    if not length:
        return None
    memory = empty_bytes(length)
    _receive_into(world, place, memory, length, SERVING_TAG)
    return memory


def _length(world: World, place: int, tag: int) -> int:
    return int.from_bytes(_receive(world, place, tag).numpy().tobytes(), "little")


def _receive_into(world: World, place: int, memory: Tensor | None, length: int, tag: int) -> None:
    at = 0
    while at < length:
        chunk = _receive(world, place, tag)
        if memory is not None:
            memory[at : at + chunk.numel()].copy_(chunk)
        at += chunk.numel()


def _send(world: World, place: int, payload: Tensor, tag: int) -> None:
    wait_blocking(world.start_send_tensors([payload.to(world.device)], place, tag, None))


def _receive(world: World, place: int, tag: int) -> Tensor:
    payload = wait_blocking(world.start_recv_tensors(place, tag, None))
    assert isinstance(payload, list)
    return payload[0].cpu()


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else empty_bytes(0)

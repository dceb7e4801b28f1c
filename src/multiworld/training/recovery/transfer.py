"""Give a newcomer the state: from several sources at once, in the background, checked by hash.

Each source copies its share of the bytes between two steps, and sends it while the training goes on. The first source
also sends what is no tensor. Tags below ``TAG`` are the program's own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...channel.base import Payload
from ...wire.messages import decode, encode, message, sparse
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread, wait_blocking
from ...world.world import World
from ..engine.gradients import local
from ..errors import TrainingError
from .state_parts import (
    Part,
    bytes_of,
    empty_bytes,
    pack,
    put_together,
    sharding_of,
    share_out,
    take_apart,
    tensor_of,
    unpack,
)

TAG = 1 << 20
CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """What a tensor's bytes are. ``sharding``: of a DTensor, how it is cut; empty of another."""

    size_bytes: int
    dtype: str
    shape: tuple[int, ...]
    sharding: str = ""


@message("share")
@sparse
@dataclass(frozen=True, kw_only=True)
class ShareHeader:
    """What comes before a source's share: which bytes it has, and their digest. ``tensors``: from the first source."""

    parts: tuple[Part, ...]
    digest: str
    tensors: tuple[TensorForm, ...] = ()


class DamagedStateError(TrainingError):
    """What came from a source is not what it sent. Fields: ``source`` (its rank in the world), ``generation``."""

    def __init__(self, source: int, generation: int) -> None:
        super().__init__(source, generation)
        self.source, self.generation = source, generation

    def __str__(self) -> str:
        return f"the state from rank {self.source} of generation {self.generation} was damaged on the way"


class Sending:
    """The share of one source, on its way to the newcomers of a world. Make it between two steps."""

    def __init__(self, world: World, state: Any, sources: Sequence[int], newcomers: Sequence[int]) -> None:
        tensors, rest = take_apart(state)
        flat = [bytes_of(each) for each in tensors]
        shares = share_out([each.numel() for each in flat], len(sources))
        mine = shares[sources.index(world.rank)]
        self.size_bytes = sum(part.end - part.begin for part in mine)
        data, position = empty_bytes(self.size_bytes), 0
        for part in mine:
            end = position + part.end - part.begin
            data[position:end].copy_(flat[part.index][part.begin : part.end].cpu())
            position = end
        is_first = world.rank == sources[0]
        header = ShareHeader(parts=tuple(mine), digest="", tensors=tuple(map(form_of, tensors)) if is_first else ())
        packed_rest = pack(rest if is_first else None)  # before the next step changes what is no tensor
        self._world = world
        self._operations: list[tuple[int, Operation[None]]] = []
        begin = partial(self._begin, header, packed_rest, data, newcomers)
        self._begun = run_in_thread(begin, "multiworld-training-send")

    def _begin(self, header: ShareHeader, packed_rest: Tensor, data: Tensor, newcomers: Sequence[int]) -> None:
        """Compute the digest of what may be gigabytes, and send, while the training goes on."""
        packed = encode(replace(header, digest=_digest(data)))
        first = [torch.frombuffer(bytearray(packed), dtype=torch.uint8), packed_rest]
        for newcomer in newcomers:
            for payload in (first, *([each] for each in torch.split(data, CHUNK_BYTES) if each.numel())):
                carried = [each.to(self._world.device) for each in payload]
                self._operations.append((newcomer, self._world.start_send_tensors(carried, newcomer, TAG, None)))

    @property
    def is_done(self) -> bool:
        """Whether all was sent, or cannot be any more."""
        return self._begun.done and all(each.done for _, each in self._operations)

    def wait(self) -> None:
        """Wait until all was sent. Raises the world's error."""
        wait_blocking(self._begun)
        for newcomer, operation in self._operations:
            self._world.wait_thread(operation, newcomer, None)


class Receiving:
    """The state on its way here. ``poll`` now and then; ``state`` once it returns True."""

    def __init__(self, world: World, sources: Sequence[int]) -> None:
        self._world, self._sources = world, list(sources)
        self._began = time.monotonic()
        self._shares = [_Share(world, source) for source in sources]

    @property
    def num_sources(self) -> int:
        return len(self._sources)

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began

    def poll(self) -> bool:
        """Whether all is here. Raises the world's error, DamagedStateError."""
        polls = [share.poll() for share in self._shares]  # of each, not up to the first that is not whole
        return all(polls)

    def wait(self) -> None:
        while not self.poll():
            for share in self._shares:
                share.wait()

    def state(self, templates: Any) -> tuple[Any, int]:
        """Return the state and its size in bytes. ``templates``: a state of this process, whose DTensors tell the mesh.

        Raises ValueError if it has none that is sharded as one of the sources'.
        """
        described = self._shares[0].header.tensors
        data = [empty_bytes(form.size_bytes) for form in described]
        for share in self._shares:
            share.fill(data)
        return assemble(described, self._shares[0].rest, data, templates), sum(each.numel() for each in data)


class _Share:
    def __init__(self, world: World, source: int) -> None:
        self._world, self._source = world, source
        self._operation: Operation[Payload] = world.start_recv_tensors(source, TAG, None)
        self._chunks: list[Tensor] = []
        self._num_missing = 0
        self._header: ShareHeader | None = None
        self.rest: Any = None
        self._is_whole = False

    def wait(self) -> None:
        if not self._is_whole:
            self._world.wait_thread(self._operation, self._source, None)

    def poll(self) -> bool:
        while not self._is_whole and self._operation.done:
            payload = self._operation.result()
            assert isinstance(payload, list)
            if self._header is None:
                self._header, self.rest = decode(ShareHeader, bytes(payload[0].tolist())), unpack(payload[1].cpu())
                self._num_missing = sum(part.end - part.begin for part in self._header.parts)
            else:
                self._chunks.append(payload[0].cpu())
                self._num_missing -= payload[0].numel()
            if self._num_missing > 0:
                self._operation = self._world.start_recv_tensors(self._source, TAG, None)
                continue
            data = torch.cat(self._chunks) if self._chunks else empty_bytes(0)
            if _digest(data) != self._header.digest:
                raise DamagedStateError(self._source, self._world.generation)
            self._chunks = [data]
            self._is_whole = True
        return self._is_whole

    @property
    def header(self) -> ShareHeader:
        assert self._header is not None, "a share that has not come has no header"
        return self._header

    def fill(self, tensors: Sequence[Tensor]) -> None:
        position = 0
        for part in self.header.parts:
            size = part.end - part.begin
            tensors[part.index][part.begin : part.end] = self._chunks[0][position : position + size]
            position += size


def assemble(forms: Sequence[TensorForm], rest: Any, data: Sequence[Tensor], templates: Any) -> Any:
    """Return the state of these forms, values and bytes, which become its tensors' memory.

    ``templates``: a state of this process, whose DTensors tell the mesh. Raises ValueError if it has none that is
    sharded as one of the state's.
    """
    own = {sharding_of(each): each for each in take_apart(templates)[0]}
    tensors = []
    for each, form in zip(data, forms, strict=True):
        if form.sharding and form.sharding not in own:
            raise ValueError(f"the sources have a tensor sharded as {form.sharding}, and this model has none")
        template = own[form.sharding] if form.sharding else None
        tensors.append(tensor_of(each, getattr(torch, form.dtype), form.shape, template))
    return put_together(rest, tensors)


def form_of(tensor: Tensor) -> TensorForm:
    """Return what ``assemble`` needs to know of a tensor."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(local(tensor).shape)
    return TensorForm(size_bytes=bytes_of(tensor).numel(), dtype=dtype, shape=shape, sharding=sharding_of(tensor))


def _digest(data: Tensor) -> str:
    return hashlib.blake2b(data.numpy().data, digest_size=16).hexdigest() if data.numel() else ""

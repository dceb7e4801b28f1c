"""The copy of the state that the training thread makes between two steps: in memory that the writer process shares.

It is made before the next step changes anything, so it has the values of the step that it was taken at, and the
training goes on while it is written. The memory is used again by the next one.
"""

from __future__ import annotations

import functools
import mmap
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType
from torch.distributed.tensor import DTensor

from ..state import APART, StateDict
from .flat import STRUCTURE, FlatState
from .packing import Packer, is_plain, pack
from .sharing import deal

ALIGNMENT = 64
OF_ONE_WRITER = f"{APART}."
"""How names begin of what only one writer has."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def view(self, memory: mmap.mmap | None) -> Tensor:
        """``memory``: None if no tensor has a byte."""
        count = torch.Size(self.shape).numel()
        if not count or memory is None:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(memory, dtype=self.dtype, count=count, offset=self.offset).view(self.shape)


@dataclass(frozen=True)
class Staged:
    """What one writer writes: its items of DCP's plan, the places of its tensors, and its values.

    ``layout`` has the first two, pickled once for many checkpoints. ``plain`` are values of Python's own types; the
    writer packs them. ``packed`` has the others as DCP writes them: they may be of classes that only this process has.
    """

    layout: bytes
    plain: StateDict
    packed: Mapping[str, bytes]

    def plan(self) -> tuple[SavePlan, Mapping[str, Place]]:
        return _unpickled(self.layout)

    def bytes_of(self, name: str, packer: Packer) -> bytes:
        if name in self.packed:
            return self.packed[name]
        return packer.structure(self.plain[name]) if name == STRUCTURE else packer.value(self.plain[name])


@functools.lru_cache(maxsize=1)
def _unpickled(layout: bytes) -> tuple[SavePlan, Mapping[str, Place]]:
    plan: tuple[SavePlan, Mapping[str, Place]] = pickle.loads(layout)
    return plan


class Staging:
    """Of one process. The training thread alone uses it, and never while the writer still reads."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("multiworld-checkpoint", os.MFD_CLOEXEC)
        self._signature: object = None
        self._layout = b""
        self._targets: dict[str, Tensor] = {}
        self._values: list[str] = []

    def close(self) -> None:
        """Give the memory back, once the writer has let go of it, too. Idempotent."""
        self._targets = {}
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def take(self, state: FlatState, *, writer: int, num_writers: int) -> Staged:
        """Copy what this writer writes. Tensors may be on any device.

        Raises TypeError for a tensor that has no plain layout, OSError if there is no memory, and what ``pickle``
        raises for a value that it does not take.
        """
        leaves = {**state.leaves, STRUCTURE: state.structure}
        signature = writer, num_writers, tuple((name, _signature(leaf)) for name, leaf in leaves.items())
        if signature != self._signature:
            self._signature = None  # so that a failure leaves nothing half done
            self._lay_out(state, leaves, writer, num_writers)
            self._signature = signature
        if self._targets:
            with torch.no_grad():
                sources = [_local(leaves[name]) for name in self._targets]
                torch._foreach_copy_(list(self._targets.values()), sources)
        plain, packed = {}, {}
        for name in self._values:
            if name == STRUCTURE or is_plain(leaves[name]):
                plain[name] = leaves[name]
            else:
                packed[name] = pack(leaves[name])
        return Staged(self._layout, plain, packed)

    def _lay_out(self, state: FlatState, leaves: StateDict, writer: int, num_writers: int) -> None:
        plan = _plan(state, leaves, writer, num_writers)
        places: dict[str, Place] = {}
        size = 0
        for item in plan.items:
            if item.type is not WriteItemType.BYTE_IO:
                tensor = _local(leaves[item.index.fqn])
                places[item.index.fqn] = Place(size, tuple(tensor.shape), tensor.dtype)
                size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        self._targets = {}  # they hold the old mapping
        self._values = [item.index.fqn for item in plan.items if item.type is WriteItemType.BYTE_IO]
        os.ftruncate(self.fd, 0)
        if size:
            os.posix_fallocate(self.fd, 0, size)  # an error here, where it can be said, and not a signal at a copy
            memory = mmap.mmap(self.fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self._targets = {name: place.view(memory) for name, place in places.items()}
        self._layout = pickle.dumps((plan, places))


def _plan(state: FlatState, leaves: StateDict, writer: int, num_writers: int) -> SavePlan:
    """Return DCP's own plan, but for what other writers write."""
    for name, leaf in leaves.items():
        if isinstance(leaf, Tensor) and (leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_meta):
            raise TypeError(f"{name}: a tensor with layout {leaf.layout} on {leaf.device} cannot be saved")
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(leaves), None, True)
    everything = planner.create_local_plan()
    items = list(everything.items)
    tensors = [item for item in items if item.type is WriteItemType.TENSOR]
    whole = [item for item in tensors if not item.index.fqn.startswith(OF_ONE_WRITER)]  # all writers have these
    owners = deal([leaves[item.index.fqn].nbytes for item in whole], num_writers)
    owned = {item.index.fqn for item, owner in zip(whole, owners, strict=True) if owner == writer}
    mine = [
        item
        for item in items
        if item.index.fqn in owned
        or (item.type is WriteItemType.TENSOR and item.index.fqn.startswith(OF_ONE_WRITER))
        or (item.type is WriteItemType.SHARD and _is_first_copy(leaves[item.index.fqn]))
        or (item.type is WriteItemType.BYTE_IO and (writer == 0 or item.index.fqn.startswith(OF_ONE_WRITER)))
    ]
    return SavePlan(mine, planner_data={**state.paths, STRUCTURE: (STRUCTURE,)})


def _is_first_copy(tensor: DTensor) -> bool:
    """Whether no process of the mesh with lower coordinates has the same part."""
    place: Sequence[int] = tensor.device_mesh.get_coordinate() or ()
    return not any(at and how.is_replicate() for at, how in zip(place, tensor.placements, strict=True))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _signature(leaf: Any) -> object:
    if not isinstance(leaf, Tensor):
        return None
    if isinstance(leaf, DTensor):
        return leaf.shape, leaf.dtype, leaf.placements, id(leaf.device_mesh)
    return leaf.shape, leaf.dtype

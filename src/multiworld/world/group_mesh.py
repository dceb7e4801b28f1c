"""A world as a DeviceMesh of one dimension, also in a process without a default group."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from .process_group import WorldProcessGroup

__all__ = ["WorldMesh"]


class WorldMesh(DeviceMesh):
    """It knows its rank from the world, where DeviceMesh asks the default group.

    Two DeviceMeshes are equal if their ranks have the same numbers, and DTensor, which keeps what it has planned for a
    mesh, goes on with the older of the two. Meshes of different worlds or generations are never equal.
    """

    def __init__(self, group: WorldProcessGroup, dim_name: str | None) -> None:
        self._name = str(group.group_name)
        self._world_rank = int(group.rank())
        ranks = dist.get_process_group_ranks(group)
        super().__init__(
            group.world.device.type,
            ranks,
            mesh_dim_names=None if dim_name is None else (dim_name,),
            _init_backend=False,
            _rank=ranks[self._world_rank],
        )
        self._dim_group_names = [self._name]  # type: ignore[list-item]
        # Weakly: DTensor keeps meshes for as long as the process lives, and a group is over with its world.
        self._pg_registry = weakref.WeakValueDictionary({self._name: group})  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, WorldMesh) and self._name == other._name and super().__eq__(other))

    def __hash__(self) -> int:
        return hash(self._hash_key())

    def _hash_key(self) -> tuple[Any, ...]:
        return (*super()._hash_key(), self._name)

    def get_rank(self) -> int:
        return self._rank

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        self.get_group(mesh_dim)  # it checks the argument
        return self._world_rank

"""A world as a DeviceMesh of one dimension, also in a process without a default group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName

if TYPE_CHECKING:
    from .process_group import WorldProcessGroup

__all__ = ["WorldMesh"]


class WorldMesh(DeviceMesh):
    """It knows its rank from the world, where DeviceMesh asks the default group."""

    def __init__(self, group: WorldProcessGroup, dim_name: str | None) -> None:
        ranks = dist.get_process_group_ranks(group)
        super().__init__(
            group.world.device.type,
            ranks,
            mesh_dim_names=None if dim_name is None else (dim_name,),
            _init_backend=False,
            _rank=ranks[group.rank()],
        )
        self._dim_group_names = [GroupName(group.group_name)]  # as DeviceMesh.from_group does
        self._pg_registry[group.group_name] = group
        self._world_rank = int(group.rank())

    def get_rank(self) -> int:
        return self._rank

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        self.get_group(mesh_dim)  # it checks the argument
        return self._world_rank

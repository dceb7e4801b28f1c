"""Worlds as a DeviceMesh, also in a process without a default group."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ...errors import InvalidTypeError, InvalidValueError
from ..world import GroupOfWorld
from .split import left_s

DimNames = str | Sequence[str] | None


class WorldMesh(DeviceMesh):
    """It knows its rank from the worlds of its groups, where DeviceMesh asks the default group.

    Two DeviceMeshes are equal if their ranks have the same numbers, and DTensor, which keeps what it has planned for a
    mesh, goes on with the older of the two. Meshes of different worlds or generations are never equal.
    """

    def __init__(
        self,
        groups: Sequence[GroupOfWorld],
        mesh: Tensor | None,
        rank: int,
        dim_names: tuple[str, ...] | None,
        *,
        whole: GroupOfWorld | None = None,
        root: WorldMesh | None = None,
        layout: Any = None,
    ) -> None:
        """``groups`` has one for each dimension, ``mesh`` the global ranks, of which ``rank`` is this process.

        ``whole`` has all ranks of the mesh, where there is one. ``layout`` says in place of ``mesh`` which part of the
        mesh ``root`` this one is.
        """
        names = [str(group.group_name) for group in groups]
        self._names, self._rank = tuple(names), rank
        # Weakly: DTensor keeps meshes for as long as the process lives, and a group is over with its world.
        self._whole = None if whole is None else weakref.ref(whole)
        super().__init__(
            groups[0].world.device.type,
            mesh,
            mesh_dim_names=dim_names,
            _init_backend=False,
            _rank=rank,
            _layout=layout,
            _rank_map=None if root is None else root._rank_map,
            _root_mesh=root,
        )
        self._dim_group_names = names  # type: ignore[assignment]
        self._pg_registry = weakref.WeakValueDictionary(zip(names, groups, strict=True))  # type: ignore[assignment]
        if root is not None:
            root._pg_registry.update(zip(names, groups, strict=True))

    @staticmethod
    def from_group(
        group: dist.ProcessGroup | Sequence[dist.ProcessGroup],
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
    ) -> WorldMesh:
        """As ``DeviceMesh.from_group``: a mesh of one dimension over one group, or of as many as there are groups.

        This process stands where its ranks in the groups say. The numbers in ``mesh`` are names for the processes, the
        same in all of them.
        """
        groups: list[Any] = list(group) if isinstance(group, list | tuple) else [group]
        _check_groups(groups, device_type)
        if mesh is None:
            if len(groups) != 1:
                raise InvalidValueError(f"mesh is missing: {len(groups)} groups need the ranks of all processes")
            mesh = dist.get_process_group_ranks(groups[0])
        ranks = torch.as_tensor(mesh, dtype=torch.int, device="cpu").detach()
        sizes = [group.size() for group in groups]
        if list(ranks.shape) != sizes:
            raise InvalidValueError(f"mesh has the shape {list(ranks.shape)}, but the groups have {sizes} ranks")
        if len(set(ranks.flatten().tolist())) < ranks.numel():
            raise InvalidValueError(f"mesh={ranks.tolist()}: a rank is named twice")
        own = int(ranks[tuple(group.rank() for group in groups)])
        return WorldMesh(groups, ranks, own, _names(mesh_dim_names, len(groups)))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, WorldMesh) and self._names == other._names and super().__eq__(other))

    def __hash__(self) -> int:
        return hash(self._hash_key())

    def _hash_key(self) -> tuple[Any, ...]:
        return (*super()._hash_key(), *self._names)

    def get_rank(self) -> int:
        return self._rank

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        return int(self.get_group(mesh_dim).rank())

    def _get_mesh_tensor_from_full_mesh(  # type: ignore[override] # static there, but called of an instance
        self, full_mesh: Tensor, current_rank: int | None = None
    ) -> Tensor:
        rank = self._rank if current_rank is None else current_rank
        return DeviceMesh._get_mesh_tensor_from_full_mesh(full_mesh, rank)

    # ---- DeviceMesh makes others of itself by these, and would ask the default group in them

    def _create_sub_mesh(self, layout: Any, submesh_dim_names: tuple[str, ...]) -> WorldMesh:
        groups: list[Any] = [self.get_group(name) for name in submesh_dim_names]
        return WorldMesh(groups, None, self._rank, submesh_dim_names, root=self._root(), layout=layout)

    def _create_flatten_mesh(self, mesh_dim_name: str, backend_override: Any = (None, None)) -> None:
        root = self._root()
        if mesh_dim_name in (root.mesh_dim_names or ()):
            raise InvalidValueError(f"{mesh_dim_name!r} is the name of a dimension of this mesh already")
        layout = type(self._layout)([self._layout.collapse()])
        known = root._flatten_mapping.get(mesh_dim_name)
        if known is not None and known._layout == layout:
            return
        if known is not None:
            raise InvalidValueError(f"{mesh_dim_name!r} is the name of another flattened part of this mesh")
        whole = None if root._whole is None else root._whole()
        if whole is None:
            raise InvalidValueError(
                "this mesh cannot be flattened: no group has all its ranks. Make it with world.device_mesh(shape=...)"
            )
        rows = layout.remap_to_tensor(root._rank_map)
        row = next(row for row in rows.tolist() if root._rank in row)
        group = whole.subgroup([dist.get_group_rank(whole, number) for number in row])
        root._flatten_mapping[mesh_dim_name] = WorldMesh(
            [group], None, root._rank, (mesh_dim_name,), root=root, layout=layout
        )

    def _root(self) -> WorldMesh:
        root = self._get_root_mesh()
        assert isinstance(root, WorldMesh)
        return root


def mesh_of_world(group: GroupOfWorld, dim_names: DimNames, shape: Sequence[int] | None, until: float) -> WorldMesh:
    """Return the ranks of a world as a mesh of that shape; None: of one dimension. Collective, if not.

    Blocks, until ``until`` (monotonic) at most.
    """
    ranks = dist.get_process_group_ranks(group)
    own = ranks[group.rank()]
    if shape is None:
        return WorldMesh([group], torch.tensor(ranks), own, _names(dim_names, 1), whole=group)
    names = _names(dim_names, len(shape))
    groups = [group.subgroup(row, left_s(until)) for row in rows_of(group.rank(), group.size(), shape)]
    return WorldMesh(groups, torch.tensor(ranks).view(*shape), own, names, whole=group)


def rows_of(rank: int, size: int, shape: Sequence[int]) -> list[list[int]]:
    """Return, for each dimension of a mesh of the ranks 0 to ``size - 1``, the ranks that stand in a row with one."""
    if not shape or any(not isinstance(length, int) or length < 1 for length in shape) or math.prod(shape) != size:
        raise InvalidValueError(f"shape={list(shape)}: the product must be the {size} ranks of the world")
    ranks = torch.arange(size).view(*shape)
    found = []
    for dim, length in enumerate(shape):
        rows = ranks.movedim(dim, -1).reshape(-1, length).tolist()
        found.append(next(row for row in rows if rank in row))
    return found


def _names(names: DimNames, num_dims: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    named = (names,) if isinstance(names, str) else tuple(names)
    if len(named) != num_dims or len(set(named)) != num_dims:
        raise InvalidValueError(f"the names of dimensions {list(named)} must be {num_dims} different ones")
    return named


def _check_groups(groups: Sequence[Any], device_type: str) -> None:
    if not groups:
        raise InvalidValueError("groups=[]: a mesh has at least one dimension")
    for group in groups:
        if not hasattr(group, "world"):
            raise InvalidTypeError(
                f"WorldMesh is over groups of worlds, got {group!r}; DeviceMesh.from_group takes the others"
            )
        if group.world.device.type != device_type:
            raise InvalidValueError(f"device_type={device_type!r}, but {group!r} is on {group.world.device.type!r}")

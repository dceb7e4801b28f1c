"""This process's replica: its mesh for FSDP2 or tensor parallelism, and its part of each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...errors import JoinTimeoutError
from ...world.manager import WorldManager
from ...world.world import World
from ..errors import ReplicaBrokenError, SetupError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Replica:
    """``job.replica``. ``index``: which replica; ``rank``: this process's shard of it; ``size``: how many it has.

    Its world stands as long as all its processes live, whatever happens to other replicas. When one of them ends, this
    process raises ReplicaBrokenError; the launcher starts all of them again, and they come back as one.
    """

    def __init__(self, index: int, rank: int, size: int, world: World) -> None:
        self.index, self.rank, self.size, self.world = index, rank, size, world

    def __repr__(self) -> str:
        return f"<Replica {self.index}: process {self.rank} of {self.size}>"

    def device_mesh(
        self, dim_names: str | Sequence[str] | None = None, *, shape: Sequence[int] | None = None
    ) -> DeviceMesh:
        """Return the processes of this replica as a mesh: ``fully_shard(model, mesh=job.replica.device_mesh())``.

        With ``shape`` it has several dimensions, for FSDP2 with tensor parallelism; then all of them must call it.
        """
        return self.world.device_mesh(dim_names, shape=shape)

    def part(self, batch: Any) -> Any:
        """Return this process's rows of a micro-batch: for FSDP2, whose processes compute different rows.

        Under tensor parallelism all of them take the whole micro-batch instead. Tensors are cut along their first
        dimension, inside of tuples, lists and dicts too. Raises ValueError if the rows cannot be dealt evenly: FSDP2
        takes the mean over processes, which would not be the mean over rows.
        """
        if self.size == 1:
            return batch
        if isinstance(batch, torch.Tensor):
            if len(batch) % self.size:
                raise ValueError(
                    f"a micro-batch of {len(batch)} rows cannot be dealt to {self.size} processes of a replica: "
                    f"choose a micro_batch that {self.size} divides"
                )
            return batch[self.rank :: self.size]
        if isinstance(batch, Mapping):
            return {key: self.part(value) for key, value in batch.items()}
        if isinstance(batch, (list, tuple)):
            parts = [self.part(value) for value in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        return batch

    def check(self) -> None:
        """Raise ReplicaBrokenError if a process of this replica was lost."""
        error = self.world.error
        if error is not None:
            raise ReplicaBrokenError(self.index, self.rank, str(error)) from error


def form_replica(
    manager: WorldManager,
    job: str,
    rank: int,
    size: int,
    *,
    store: str | None,
    backend: str,
    timeout_s: float,
) -> Replica:
    """Form the world of this process's replica. ``rank``: the launcher's. Blocks until all its processes are there.

    Raises SetupError if they are not within ``timeout_s``.
    """
    index, shard = divmod(rank, size)
    name = f"{job}.replica-{index}"
    try:
        world = manager.blocking.join(name, shard, size, store, backend, timeout_s)
    except JoinTimeoutError as error:
        raise SetupError(
            f"replica {index} has {size} processes, and not all were there within {timeout_s:.0f} s: {error}. "
            "Start all of them, or raise join_timeout_s"
        ) from error
    return Replica(index, shard, size, world)

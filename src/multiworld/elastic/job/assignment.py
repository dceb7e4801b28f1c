"""Where one worker process stands in the job. Pure: the coordinator decides it, agents carry it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...wire.messages import message


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The place of one worker process: its ranks, the sizes they count in, and which membership of the job they are of.

    ``generation`` grows with every change of the job's membership, and with every start of all workers; it is the same
    for all workers of one membership. ``restarts`` counts how often this rank (under ``all``: the job) was started
    again, from 0.
    """

    generation: int
    restarts: int
    rank: int
    local_rank: int
    node_rank: int
    role_rank: int
    world_size: int
    local_world_size: int
    num_nodes: int
    role_world_size: int
    master_addr: str
    master_port: int


@message("membership")
@dataclass(frozen=True, kw_only=True)
class Membership:
    """What is the same in the places of all workers of one membership; as an order: those that run keep their ranks.

    A thousand hosts are told so in one note, which is packed once.
    """

    generation: int
    world_size: int
    num_nodes: int
    role_world_sizes: Mapping[str, int]
    master_addr: str
    master_port: int

    def renewed(self, before: Assignment, role: str) -> Assignment:
        """Return the same ranks in this membership."""
        return replace(
            before,
            generation=self.generation,
            world_size=self.world_size,
            num_nodes=self.num_nodes,
            role_world_size=self.role_world_sizes[role],
            master_addr=self.master_addr,
            master_port=self.master_port,
        )

    def holds(self, place: Assignment) -> bool:
        """Whether it is of this membership."""
        return (
            place.generation == self.generation
            and place.world_size == self.world_size
            and place.num_nodes == self.num_nodes
            and place.role_world_size in self.role_world_sizes.values()
            and place.master_addr == self.master_addr
            and place.master_port == self.master_port
        )

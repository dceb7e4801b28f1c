"""Where one worker process stands in the job. Pure: the coordinator decides it, agents carry it out."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Assignment"]


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

"""Decide which rank each worker slot of the job has. Pure: hosts in order in, assignments out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .assignment import Assignment

__all__ = ["AgentInfo", "Slot", "lay_out"]


class Slot(NamedTuple):
    """A place for one worker on one host. Processes come and go in it, and its rank may change with the membership."""

    agent: str
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class AgentInfo:
    """One host's agent as the others know it. ``node_rank``: only if the user gave it (static rendezvous)."""

    id: str
    host: str
    port: int
    hostname: str
    pid: int
    num_workers: int
    role: str
    node_rank: int | None = None
    devices: str = ""
    """What its workers compute on, for people."""


def lay_out(
    agents: Sequence[AgentInfo], *, generation: int, restarts: dict[Slot, int], master: tuple[str, int]
) -> dict[Slot, Assignment]:
    """Return the assignment of every slot: ranks count through the hosts in their order, roles each by themselves."""
    world_size = sum(agent.num_workers for agent in agents)
    role_sizes: Counter[str] = Counter()
    for agent in agents:
        role_sizes[agent.role] += agent.num_workers
    assignments: dict[Slot, Assignment] = {}
    seen: Counter[str] = Counter()
    for node_rank, agent in enumerate(agents):
        for local_rank in range(agent.num_workers):
            slot = Slot(agent.id, local_rank)
            assignments[slot] = Assignment(
                generation=generation,
                restarts=restarts.get(slot, 0),
                rank=len(assignments),
                local_rank=local_rank,
                node_rank=node_rank,
                role_rank=seen[agent.role],
                world_size=world_size,
                local_world_size=agent.num_workers,
                num_nodes=len(agents),
                role_world_size=role_sizes[agent.role],
                master_addr=master[0],
                master_port=master[1],
            )
            seen[agent.role] += 1
    return assignments

"""Decide which rank each worker slot of the job has. Pure: hosts in order in, assignments out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .assignment import Assignment, Membership


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
    device_indices: tuple[str, ...] = ()
    """The numbers, or names, of the devices that its workers may use."""
    host_id: str = ""
    """That of the processes there (``host_identity``); empty if it is not told."""


class Layout:
    """The place of every slot: ranks count through the hosts in their order, roles each by themselves."""

    def __init__(self, agents: Sequence[AgentInfo], generation: int, master: tuple[str, int]) -> None:
        self._hosts: dict[str, tuple[int, int, int, int, str]] = {}
        """By agent: its node rank, the first rank and role rank on its host, the number of workers, and their role."""
        rank, role_sizes = 0, Counter[str]()
        for node_rank, agent in enumerate(agents):
            role_rank = role_sizes[agent.role]
            self._hosts[agent.id] = (node_rank, rank, role_rank, agent.num_workers, agent.role)
            rank += agent.num_workers
            role_sizes[agent.role] += agent.num_workers
        self.membership = Membership(
            generation=generation,
            world_size=rank,
            num_nodes=len(agents),
            role_world_sizes=dict(role_sizes),
            master_addr=master[0],
            master_port=master[1],
        )

    def assignment(self, slot: Slot, *, restarts: int) -> Assignment:
        node_rank, rank, role_rank, num_workers, role = self._hosts[slot.agent]
        membership, local_rank = self.membership, slot.local_rank
        return Assignment(
            generation=membership.generation,
            restarts=restarts,
            rank=rank + local_rank,
            local_rank=local_rank,
            node_rank=node_rank,
            role_rank=role_rank + local_rank,
            world_size=membership.world_size,
            local_world_size=num_workers,
            num_nodes=membership.num_nodes,
            role_world_size=membership.role_world_sizes[role],
            master_addr=membership.master_addr,
            master_port=membership.master_port,
        )

    def have_moved(self, agent: str, before: Iterable[Assignment]) -> bool:
        """Whether the ranks of any worker on that host are others now."""
        node_rank, rank, role_rank, num_workers, _ = self._hosts[agent]
        for place in before:
            local_rank = place.local_rank
            if place.rank != rank + local_rank or place.role_rank != role_rank + local_rank:
                return True
            if place.node_rank != node_rank or place.local_world_size != num_workers:
                return True
        return False

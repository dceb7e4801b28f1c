"""Decide which processes are one replica, and which replicas are whole. Pure.

With replicas of R processes, the launcher's rank r is shard ``r % R`` of replica ``r // R``. The same shards of all
replicas reduce gradients. Members stand replica by replica, so the same holds for their places in a generation's world:

    place     0     1     2     3     4     5        R = 2
    member   r0s0  r0s1  r2s0  r2s1  r1s0  r1s1      replica 1 came back last
    shard 0   x           x           x              places 0, 2, 4 reduce
    shard 1         x           x           x        places 1, 3, 5 reduce
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar


class InReplica(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def rank(self) -> int:
        """The launcher's."""

    @property
    def unit(self) -> str:
        """The same for all processes of one replica, and another one when it returns."""


M = TypeVar("M", bound=InReplica)
T = TypeVar("T")


def whole_replicas(members: Iterable[M], size: int) -> list[M]:
    """Return the members whose replica has all its shards, replica by replica, shards in order.

    Replicas stand in the order in which their first member stands in ``members``.
    """
    replicas: dict[str, dict[int, M]] = {}
    for member in members:
        replicas.setdefault(member.unit, {})[member.rank % size] = member
    return [shards[shard] for shards in replicas.values() if len(shards) == size for shard in range(size)]


def lost_with(lost: Collection[str], members: Sequence[InReplica]) -> set[str]:
    """Return the ids of all that share a replica with one that is lost: they hold only a part of the model."""
    broken = {member.unit for member in members if member.id in lost}
    return {member.id for member in members if member.unit in broken}


def places_lost_with(places: Collection[int], size: int) -> frozenset[int]:
    """Return the places of all processes of the replicas that stand at ``places``."""
    return frozenset(place // size * size + shard for place in places for shard in range(size))


def places_of_shard(place: int, num_places: int, size: int) -> range:
    """Return the places that hold the same shard as ``place``: the ranks of the world in which it reduces gradients."""
    return range(place % size, num_places, size)


def share_of_replicas(shares: Sequence[T], size: int) -> list[T]:
    """Return what each place is to compute, given what each replica is: all its processes compute it together."""
    return [share for share in shares for _ in range(size)]


def check_replica_size(size: int, world_size: int | None) -> None:
    """Raise ValueError if the processes that the launcher starts do not make up whole replicas."""
    if size < 1:
        raise ValueError(f"replica_size={size}: a replica has at least 1 process")
    if world_size is not None and world_size % size:
        raise ValueError(
            f"replica_size={size}, but the launcher starts {world_size} processes, and {world_size} / {size} is no "
            f"whole number: start {(world_size // size + 1) * size}"
        )

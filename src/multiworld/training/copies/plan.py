"""Decide who keeps whose copy, when one is taken, and which step all go on with after all owners of a shard are lost.

Pure. Places are ranks in a generation's world. A snapshot is one process's part of the state after some steps; its
``label`` is made of the facts of the last one, so it is equal on all members, and differs when a step is done again.

::

    host   A     A     B     B       copies=1: the memory of each host has two of four shards of the step,
    place  0     1     2     3       and copies of the other two
    keeps  0, 2  1, 3  2, 0  3, 1
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...wire.messages import message, sparse

NEVER = -1


@message("copy_facts")
@sparse
@dataclass(frozen=True, kw_only=True)
class CopyFacts:
    """A member's part of ``Facts``. ``begun``: the step of the last snapshot that it began; ``is_busy``: not done yet.

    ``whole``: the steps of its snapshots that its partners have, too.
    """

    begun: int = NEVER
    is_busy: bool = False
    whole: tuple[int, ...] = ()


@message("snapshot")
@sparse
@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One that a member can read in its host's memory. ``is_copy``: a partner of the shard's process wrote it."""

    step: int
    label: str
    shard: int
    is_copy: bool = False


@message("serving")
@sparse
@dataclass(frozen=True, kw_only=True)
class Serving:
    """Of one shard: the member ``holder`` reads it for the member ``source``, which has that shard. Both are ids."""

    shard: int
    holder: str
    source: str


@message("memory_plan")
@sparse
@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """All members of a generation begin with this step, from memory. ``servings``: one for each shard, in order."""

    step: int
    label: str
    servings: tuple[Serving, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(each.source for each in self.servings)


def check_copies(copies: int, replica_size: int, world_size: int) -> None:
    """Raise ValueError if copies cannot be kept, or are of no use."""
    if not copies:
        return
    if replica_size == 1:
        raise ValueError(
            f"copies={copies}, but each replica is one process (replica_size=1): every replica has the whole state, "
            "and is its copy. Leave copies out, or shard the model with replica_size=2 or more"
        )
    if copies >= world_size:
        raise ValueError(
            f"copies={copies}, but there are {world_size} processes, and {world_size} - 1 = {world_size - 1} others "
            f"that can keep one: give {world_size - 1} at most"
        )


def partners(place: int, hosts: Sequence[str], copies: int) -> tuple[int, ...]:
    """Return the places that keep a copy for ``place``: on other hosts first, and on as many as there are.

    ``hosts``: of each place. The processes of a host take turns, so that all keep about the same number.
    """
    names = list(dict.fromkeys(hosts))
    on_host = {name: [other for other, host in enumerate(hosts) if host == name] for name in names}
    mine = names.index(hosts[place])
    number = on_host[hosts[place]].index(place)
    ring = [on_host[names[(mine + distance) % len(names)]] for distance in range(1, len(names))]
    orders = [_rotated(others, number) for others in ring]
    longest = max(map(len, orders), default=0)
    elsewhere = [order[turn] for turn in range(longest) for order in orders if turn < len(order)]
    here = _rotated(on_host[hosts[place]], number)[1:]
    return tuple([*elsewhere, *here][:copies])


def kept_for(place: int, hosts: Sequence[str], copies: int) -> tuple[int, ...]:
    """Return the places whose copies ``place`` keeps."""
    return tuple(other for other in range(len(hosts)) if place in partners(other, hosts, copies))


def is_due(step: int, every_steps: int, facts: Sequence[CopyFacts]) -> bool:
    """Whether all members take a snapshot after ``step`` committed steps. ``facts``: of those that have the state.

    Nobody begins before all have ended the last one: so the one before it is not written over too early.
    """
    if not facts or any(each.is_busy for each in facts):
        return False
    begun = max(each.begun for each in facts)
    return begun == NEVER or step // every_steps > begun // every_steps


def to_keep(facts: Mapping[int, Sequence[CopyFacts]]) -> int:
    """Return the newest step of which every shard has a whole snapshot, or -1. ``facts``: by shard."""
    whole = [{step for each in said for step in each.whole} for said in facts.values()]
    return max(set.intersection(*whole), default=NEVER) if whole else NEVER


def choose(
    members: Sequence[str], held: Mapping[str, Sequence[Snapshot]], num_shards: int, saved_step: int
) -> MemoryPlan | None:
    """Return the newest step that all shards have in some memory, and who serves which; None if the disk's is newer.

    ``members``: ids by place, so replica by replica. ``held``: what each one can read. ``saved_step``: that of the
    disk. One replica loads the state, that to which least has to be sent; the others get it from there.
    """
    found: dict[tuple[int, str], dict[int, dict[str, bool]]] = {}
    for member in members:
        for each in held.get(member, ()):
            of_shard = found.setdefault((each.step, each.label), {}).setdefault(each.shard, {})
            of_shard[member] = of_shard.get(member, True) and each.is_copy
    whole = [key for key, shards in found.items() if shards.keys() >= set(range(num_shards))]
    if not whole or max(whole)[0] <= saved_step:
        return None
    step, label = max(whole)
    holders = found[step, label]
    replicas = [members[first : first + num_shards] for first in range(0, len(members), num_shards)]
    sources = min(replicas, key=lambda each: sum(member not in holders[shard] for shard, member in enumerate(each)))
    loads = dict.fromkeys(members, 0)
    servings = []
    for shard, source in enumerate(sources):
        near = holders[shard]
        holder = source if source in near else min(near, key=lambda member: (loads[member], near[member]))
        loads[holder] += holder != source
        servings.append(Serving(shard=shard, holder=holder, source=source))
    return MemoryPlan(step=step, label=label, servings=tuple(servings))


def label_of(step: int, facts: Sequence[bytes]) -> str:
    """Return the label of a snapshot after ``step`` steps. ``facts``: those of all members of the last one, encoded."""
    hashed = hashlib.blake2b(str(step).encode(), digest_size=8)
    for each in facts:
        hashed.update(len(each).to_bytes(8, "little") + each)
    return hashed.hexdigest()


def _rotated(places: Sequence[int], number: int) -> list[int]:
    at = number % len(places)
    return [*places[at:], *places[:at]]

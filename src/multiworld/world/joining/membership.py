"""Which worlds this process shares with which peers: the bookkeeping between links and worlds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ...errors import WorldBrokenError
from ...wire.progress.operation import Operation
from ..links.peers import PeerInfo
from ..world import World

MAX_EARLY = 4096


@dataclass(eq=False)
class Entry:
    """One world and generation, forming or formed."""

    world: World
    uid: str
    members: list[PeerInfo]
    waiting_for: set[int]
    ready: Operation[None] = field(default_factory=Operation)
    leaving: set[int] = field(default_factory=set)
    """Ranks that said that they left, while what they sent is still being used."""

    def rank_of(self, peer_id: str) -> int:
        return next((rank for rank, member in enumerate(self.members) if member.id == peer_id), -1)

    def peers(self) -> list[PeerInfo]:
        return [member for rank, member in enumerate(self.members) if rank != self.world.rank]


class Membership:
    """News about a world that is not known here yet is kept for it (boundedly). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uid: dict[str, Entry] = {}
        self._by_peer: dict[str, dict[str, Entry]] = {}
        self._early_ready: OrderedDict[str, set[int]] = OrderedDict()
        self._early_revoked: OrderedDict[str, None] = OrderedDict()

    def open(self, world: World, uid: str, members: list[PeerInfo]) -> Operation[None]:
        """A world starts to form; the operation is done when all peers said that they are ready."""
        others = {rank for rank in range(len(members)) if rank != world.rank}
        with self._lock:
            entry = Entry(world, uid, members, others - self._early_ready.pop(uid, set()))
            self._by_uid[uid] = entry
            for peer in entry.peers():
                self._by_peer.setdefault(peer.id, {})[uid] = entry
            revoked = uid in self._early_revoked
        if revoked:
            error = WorldBrokenError(world.name, world.generation, -1, "another member gave this generation up")
            entry.ready.fail(error)
        elif not entry.waiting_for:
            entry.ready.succeed(None)
        return entry.ready

    def close(self, world: World) -> Entry | None:
        """The world is over here. Return its entry, once."""
        with self._lock:
            entry = self._find(world)
            if entry is None:
                return None
            del self._by_uid[entry.uid]
            for peer in entry.peers():
                shared = self._by_peer[peer.id]
                del shared[entry.uid]
                if not shared:
                    del self._by_peer[peer.id]
            return entry

    def entry_of(self, world: World) -> Entry | None:
        with self._lock:
            return self._find(world)

    def find(self, uid: str) -> Entry | None:
        with self._lock:
            return self._by_uid.get(uid)

    def _find(self, world: World) -> Entry | None:
        return next((entry for entry in self._by_uid.values() if entry.world is world), None)

    def shared_with(self, peer_id: str) -> list[Entry]:
        """Return the worlds that this process shares with a peer."""
        with self._lock:
            return list(self._by_peer.get(peer_id, {}).values())

    def ready(self, uid: str, rank: int) -> None:
        """A member said that it is connected to all."""
        with self._lock:
            entry = self._by_uid.get(uid)
            if entry is None:
                _bounded(self._early_ready)
                self._early_ready.setdefault(uid, set()).add(rank)
                return
            entry.waiting_for.discard(rank)
            complete = not entry.waiting_for
        if complete:
            entry.ready.succeed(None)

    def revoked_early(self, uid: str) -> None:
        """A member gave up a world that is not known here yet."""
        with self._lock:
            _bounded(self._early_revoked)
            self._early_revoked[uid] = None


def _bounded(early: OrderedDict[str, Any]) -> None:
    while len(early) >= MAX_EARLY:
        early.popitem(last=False)

"""Meet the other members of a world through a store, and agree with them on a generation.

Under ``JOB/WORLD/`` the store holds ``generation``, the number that is being formed, and below ``GENERATION/`` one
leased key per rank with that member's record. Whoever sees all ranks present moves ``generation`` on before anything
else, so that a process which comes later never meets a member of the past. Keys vanish with their owner, so a rank that
died while it waited is free at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import JoinMismatchError, JoinRefusedError, ProtocolError, StoreError
from ..store.base import Store
from ..wire.operation import Operation, StepsCancelled, settler
from ..wire.progress import ProgressThread
from ..wire.waiting import pause
from .peers import PeerInfo

__all__ = ["Invitation", "Meeting", "Rendezvous"]

logger = logging.getLogger(__name__)

TAKEN_RETRY_S = 0.02
TAKEN_PATIENCE_S = 1.0  # the store may not yet have noticed that the rank's last owner died


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """What one process wants to join."""

    job: str
    name: str
    rank: int
    world_size: int
    backend: str
    me: PeerInfo


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """All ranks are present: who they are. ``uid`` names this world and generation on every wire."""

    generation: int
    uid: str
    members: list[PeerInfo]
    records: dict[str, bytes]
    """What the store held of each rank when they met, by key."""


class Rendezvous:
    """One process's attempts to meet; ``meet`` may be called again for the next generation after a failure."""

    def __init__(self, loop: ProgressThread, store: Store, invitation: Invitation, *, min_generation: int = 1) -> None:
        self._loop, self._store, self._invitation = loop, store, invitation
        self._prefix = f"{invitation.job}/{invitation.name}/"
        self._counter = self._prefix + "generation"
        self.min_generation = min_generation
        self.key: str | None = None
        """Where our record stands while we wait."""

    async def meet(self) -> Meeting:
        """Wait until all ranks are present in one generation."""
        while True:
            current = await self._current()
            generation = int(current)
            await self._enter(generation)
            records = await self._await_others(generation, current)
            if records is None:  # it was formed or given up without us
                await self.withdraw()
                continue
            await self._store.compare_set(self._counter, current, b"%d" % (generation + 1))
            self.min_generation = generation + 1
            return self._meeting(generation, records)

    async def _current(self) -> bytes:
        """Return the number that is being formed, moved on to ours if it is behind that."""
        current = await self._store.get(self._counter)
        while current is None or int(current) < self.min_generation:
            current = await self._store.compare_set(self._counter, current, b"%d" % self.min_generation)
        return current

    async def _await_others(self, generation: int, current: bytes) -> dict[str, bytes] | None:
        """Return all ranks' records by key once they are there; None if this generation was closed without us."""
        keys = [f"{self._prefix}{generation}/{rank}" for rank in range(self._invitation.world_size)]
        present = self._store.entries(f"{self._prefix}{generation}/")
        coming = self._store.wait(keys, unless=(self._counter, current))  # asked for at once: it saves a round trip
        try:
            await self._check_others(await present)
            records = await coming
        except BaseException:
            coming.cancel(StepsCancelled())
            raise
        return None if records is None else dict(zip(keys, records, strict=True))

    async def withdraw(self) -> None:
        """Remove our record; a store that is lost has removed it with our lease."""
        try:
            await self.withdraw_nowait()
        except StoreError as error:
            logger.debug("withdrawing from world %s: %s", self._invitation.name, error)

    def withdraw_nowait(self) -> Operation[None]:
        """As ``withdraw``, without waiting for the store."""
        key, self.key = self.key, None
        return self._store.delete([] if key is None else [key])

    async def missing(self) -> list[int]:
        """Return the ranks that are not there (for the message when the time is over)."""
        generation = int(await self._store.get(self._counter) or b"0")
        present = await self._store.entries(f"{self._prefix}{generation}/")
        ranks = {int(key.rpartition("/")[2]) for key in present}
        others = set(range(self._invitation.world_size)) - {self._invitation.rank}
        return sorted(others - ranks)

    async def _enter(self, generation: int) -> None:
        key = f"{self._prefix}{generation}/{self._invitation.rank}"
        record = json.dumps(
            {
                "nonce": os.urandom(8).hex(),
                "world_size": self._invitation.world_size,
                "backend": self._invitation.backend,
                "peer": self._invitation.me.to_json().decode(),
            }
        ).encode()
        give_up_at = time.monotonic() + TAKEN_PATIENCE_S
        while True:
            holds = await self._place(key, record)
            if holds == record:
                self.key = key
                return
            if time.monotonic() > give_up_at:
                raise JoinRefusedError(self._invitation.name, self._taken(holds))
            await pause(self._loop, TAKEN_RETRY_S)

    async def _place(self, key: str, record: bytes) -> bytes | None:
        """Put our record there if nothing is. Cancelled meanwhile, it is taken away again as soon as it stands."""
        placing = self._store.compare_set(key, None, record, lease=True)
        placed: Operation[None] = Operation()
        placing.add_callback(settler(placed))

        def take_away(_: Operation[bytes | None]) -> None:
            if placing.error is None and placing.result() == record:
                self._store.delete([key])

        try:
            await placed
        except StepsCancelled:
            placing.add_callback(take_away)
            raise
        return placing.result()

    def _taken(self, record: bytes | None) -> str:
        owner = str(_parse(record).peer) if record else "another process"
        rank = self._invitation.rank
        return f"rank {rank} is taken by {owner}, which waits for the others too. Give every process its own rank"

    async def _check_others(self, present: dict[str, bytes]) -> None:
        mine = self._invitation
        for key, record in present.items():
            rank = int(key.rpartition("/")[2])
            theirs = _parse(record)
            if (theirs.world_size, theirs.backend) != (mine.world_size, mine.backend):
                await self.withdraw()
                raise JoinMismatchError(
                    mine.name,
                    f"this process says world_size={mine.world_size}, backend={mine.backend!r}, but rank {rank} "
                    f"({theirs.peer}) says world_size={theirs.world_size}, backend={theirs.backend!r}. "
                    "All members must agree",
                )

    async def absent(self, meeting: Meeting) -> list[int]:
        """Return the ranks that have withdrawn since they met: they gave up, or have formed the world."""
        present = await self._store.entries(f"{self._prefix}{meeting.generation}/")
        records = enumerate(meeting.records.items())
        return [rank for rank, (key, record) in records if present.get(key) != record]

    def _meeting(self, generation: int, records: dict[str, bytes]) -> Meeting:
        digest = hashlib.sha256(f"{self._prefix}{generation}/".encode())
        members = [_parse(record) for record in records.values()]
        for member in members:
            digest.update(member.nonce.encode())
        uid = digest.hexdigest()[:32]
        peers = [member.peer for member in members]
        return Meeting(generation=generation, uid=uid, members=peers, records=records)


class _Record(NamedTuple):
    """What a member has put into the store."""

    nonce: str
    world_size: int
    backend: str
    peer: PeerInfo


def _parse(record: bytes) -> _Record:
    try:
        fields = json.loads(record)
        peer = PeerInfo.from_json(fields["peer"].encode())
        return _Record(str(fields["nonce"]), int(fields["world_size"]), str(fields["backend"]), peer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"a member's record in the store cannot be read: {error}") from error

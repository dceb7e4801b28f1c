"""Meet the other members of a world through a store, and agree with them on a generation.

Under ``JOB/WORLD/`` the store holds ``generation``, the number that is being formed, and below
``GENERATION/WORLD_SIZE/BACKEND/`` one leased key per rank with that member's record. A record is put only below the
number that is being formed, and in the moment when all ranks are present the store moves that number on: a process
which comes later never meets a member of the past. Keys vanish with their owner, so a rank that died while it waited is
free at once.

Members that have their ranks from a launcher put their records below ``GENERATION/mMEMBERSHIP/WORLD_SIZE/BACKEND/``:
who has not heard yet that the job's membership has changed neither meets nor refuses those who have.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from ...errors import JoinMismatchError, JoinRefusedError
from ...store.base import Store
from ...wire.messages import decode, encode, message
from ...wire.progress.operation import Operation, StepsCancelled, settled
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import pause
from ..links.peers import PeerInfo

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
    membership: int | None = None
    """The launcher's generation, if rank or size are of it: only who has the same meets."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """All ranks are present: who they are. ``uid`` names this world and generation on every wire."""

    generation: int
    uid: str
    members: list[PeerInfo]
    records: dict[str, bytes]
    """What the store held of each rank when they met, by key."""


class _Place(NamedTuple):
    """Where one attempt puts its record."""

    generation: int
    keys: list[str]  # of all ranks
    key: str
    record: bytes


class _Requests(NamedTuple):
    """What one attempt asks the store for."""

    counting: Operation[bytes | None]  # which number is being formed
    placing: Operation[bytes | None]  # what our rank's key holds
    listing: Operation[dict[str, bytes]]  # who is there
    coming: Operation[list[bytes] | None]  # all ranks' records; None if the generation is closed without us


class Rendezvous:
    """One process's attempts to meet; ``meet`` may be called again for the next generation after a failure."""

    def __init__(self, loop: ProgressThread, store: Store, invitation: Invitation, *, min_generation: int = 1) -> None:
        self._loop, self._store, self._invitation = loop, store, invitation
        self._prefix = f"{invitation.job}/{invitation.name}/"
        self._counter = self._prefix + "generation"
        self.min_generation = min_generation
        self.key: str | None = None
        """Where our record stands while we wait."""
        self._taken: tuple[int, float] | None = None  # the generation in which our rank was taken, and since when

    async def meet(self) -> Meeting:
        """Wait until all ranks are present in one generation."""
        generation = self.min_generation  # as a rule the one that is being formed: to ask first costs a round trip
        while True:
            place = self._place(generation)
            requests = self._request(place)
            knows_record = False
            try:
                current = int(await requests.counting or b"0")
                await settled(requests.placing)
                knows_record, holds = True, requests.placing.result()
                if holds == place.record:
                    self.key = place.key
                    self._check_others(await requests.listing)
                    records = await requests.coming
                    if records is not None:
                        self.min_generation = generation + 1
                        return self._meeting(generation, dict(zip(place.keys, records, strict=True)))
            except BaseException:
                if not knows_record:
                    requests.placing.add_callback(partial(self._take_away, place))
                raise
            finally:
                requests.coming.cancel(StepsCancelled())
            generation = await self._next(place, current, holds)

    def _below(self, generation: int) -> str:
        """Return the prefix of those who agree with us: the others must not complete what these wait for."""
        mine = self._invitation
        membership = "" if mine.membership is None else f"m{mine.membership}/"
        return f"{self._prefix}{generation}/{membership}{mine.world_size}/{mine.backend}/"

    def _place(self, generation: int) -> _Place:
        mine = self._invitation
        keys = [self._below(generation) + str(rank) for rank in range(mine.world_size)]
        record = MemberRecord(
            nonce=os.urandom(8).hex(),
            world_size=mine.world_size,
            backend=mine.backend,
            membership=mine.membership,
            peer=mine.me.to_json().decode(),
        )
        return _Place(generation, keys, keys[mine.rank], encode(record))

    def _request(self, place: _Place) -> _Requests:
        """Ask for everything at once: it is one round trip, and the later requests fit the answers to the earlier."""
        number, following = b"%d" % place.generation, b"%d" % (place.generation + 1)
        forming = (self._counter, number)
        return _Requests(
            counting=self._store.compare_set(self._counter, None, number),
            placing=self._store.compare_set(place.key, None, place.record, lease=True, guard=forming),
            listing=self._store.entries(f"{self._prefix}{place.generation}/"),
            coming=self._store.wait(place.keys, unless=forming, then=following),
        )

    async def _next(self, place: _Place, current: int, holds: bytes | None) -> int:
        """Return the generation to try after one that we were not in, or that was closed while we were."""
        if holds == place.record:
            self.withdraw()
            return place.generation + 1
        if current < place.generation:  # the store is a new one, or never was told
            await self._store.compare_set(self._counter, b"%d" % current, b"%d" % place.generation)
            return place.generation
        if current > place.generation:
            return current
        if holds is None:  # closed between the two requests
            return place.generation + 1
        await self._be_patient(place, holds)
        return place.generation

    async def _be_patient(self, place: _Place, holds: bytes) -> None:
        """Our rank is taken. That may be by a process that has just died; raises JoinRefusedError if it lasts."""
        now = time.monotonic()
        if self._taken is None or self._taken[0] != place.generation:
            self._taken = (place.generation, now)
        if now - self._taken[1] > TAKEN_PATIENCE_S:
            owner, rank = MemberRecord.read(holds).member, self._invitation.rank
            raise JoinRefusedError(
                self._invitation.name,
                f"rank {rank} is taken by {owner}, which waits for the others too. Give every process its own rank",
            )
        await pause(self._loop, TAKEN_RETRY_S)

    def _take_away(self, place: _Place, placing: Operation[bytes | None]) -> None:
        """We gave up before we knew that our record stands."""
        if placing.error is None and placing.result() == place.record:
            self._store.discard([place.key])

    def withdraw(self) -> None:
        """Remove our record; a store that is lost has removed it with our lease."""
        key, self.key = self.key, None
        if key is not None:
            self._store.discard([key])

    async def missing(self) -> list[int]:
        """Return the ranks that are not there (for the message when the time is over)."""
        generation = int(await self._store.get(self._counter) or b"0")
        present = await self._store.entries(self._below(generation))
        ranks = {int(key.rpartition("/")[2]) for key in present}
        others = set(range(self._invitation.world_size)) - {self._invitation.rank}
        return sorted(others - ranks)

    def _check_others(self, present: dict[str, bytes]) -> None:
        mine = self._invitation
        for key, record in present.items():
            rank = int(key.rpartition("/")[2])
            theirs = MemberRecord.read(record)
            if theirs.member.id == mine.me.id:
                continue  # of a join that was given up here: the store is still to hear of it
            if theirs.membership != mine.membership:
                self._check_kind(theirs, rank)
                continue  # one of us has not heard yet of the job's present membership
            if (theirs.world_size, theirs.backend) != (mine.world_size, mine.backend):
                self.withdraw()
                raise JoinMismatchError(
                    mine.name,
                    f"this process says world_size={mine.world_size}, backend={mine.backend!r}, but rank {rank} "
                    f"({theirs.member}) says world_size={theirs.world_size}, backend={theirs.backend!r}. "
                    "All members must agree",
                )

    def _check_kind(self, theirs: MemberRecord, rank: int) -> None:
        """Some take their rank from the launcher and others do not: they would wait for each other in vain."""
        mine = self._invitation
        if mine.membership is not None and theirs.membership is not None:
            return
        self.withdraw()
        launchers, own = f"rank {rank} ({theirs.member})", "this process"
        if mine.membership is not None:
            launchers, own = own, launchers
        raise JoinMismatchError(
            mine.name,
            f"{launchers} takes rank or world_size from the launcher, but {own} gives both. All members must do the "
            "same",
        )

    async def absent(self, meeting: Meeting) -> list[int]:
        """Return the ranks that have withdrawn since they met: they gave up, or have formed the world."""
        present = await self._store.entries(self._below(meeting.generation))
        records = enumerate(meeting.records.items())
        return [rank for rank, (key, record) in records if present.get(key) != record]

    def _meeting(self, generation: int, records: dict[str, bytes]) -> Meeting:
        digest = hashlib.sha256(f"{self._prefix}{generation}/".encode())
        members = [MemberRecord.read(record) for record in records.values()]
        for each in members:
            digest.update(each.nonce.encode())
        uid = digest.hexdigest()[:32]
        peers = [each.member for each in members]
        return Meeting(generation=generation, uid=uid, members=peers, records=records)


@message("member")
@dataclass(frozen=True, kw_only=True)
class MemberRecord:
    """What a member puts into the store. ``peer``: as ``PeerInfo.to_json`` writes it."""

    nonce: str
    world_size: int
    backend: str
    membership: int | None = None
    peer: str

    @staticmethod
    @lru_cache(maxsize=4096)
    def read(record: bytes) -> MemberRecord:
        """Raises MessageError."""
        return decode(MemberRecord, record)

    @property
    def member(self) -> PeerInfo:
        """Raises MessageError."""
        return PeerInfo.from_json(self.peer.encode())

"""Carry out the agreement: what this member writes into the store and reads there, until a generation stands."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import StoreError
from ...store.tcp import TCPStore
from ...wire.messages import decode, encode
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import wait_blocking
from ...world.launcher.hosts_out import KEY, HostsOut
from ...world.launcher.launched import Place
from ...world.launcher.process_link import process_link
from ...world.manager import WorldManager
from ..errors import PeerRaisedError, SetupError, TooFewReplicasError
from ..replica.layout import whole_replicas
from .agreement import Rules, Situation, Wait, agree, differences
from .records import Announcement, Generation, LostMember, Member, Presence, TrainingOver
from .store_link import StoreLink

logger = logging.getLogger(__name__)

LOOK_S, MAX_LOOK_S = 0.002, 0.05
TAKE_OVER_S = 0.05  # a proposer that is slower than that leaves it to the next
FENCE_S = 1.0  # an agent that is cut off has ended its workers by then
SILENT_MORE_S = 0.25  # beats come each quarter of a lease
SAY_EVERY_S = 10.0
SAY_S = 2.0  # an error, or the end, does not wait longer for a store


_ended_here: dict[str, int] = {}
"""Number of the generation in which this process ended a training, by prefix: one with the same name may follow."""


class ExcludedError(Exception):
    """The others went on without this member; it may come back as a newcomer."""


class OverError(Exception):
    """All steps were done before this process came. Field: ``step``, how many."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True, kw_only=True)
class MembershipOptions:
    name: str
    rules: Rules
    lease_s: float
    join_timeout_s: float
    store: str | None
    """None: the launcher's."""


class Membership:
    """This process's part in the membership of one training. All methods but ``is_awaited`` belong to one thread."""

    def __init__(self, manager: WorldManager, member: Member, options: MembershipOptions) -> None:
        self.member = member
        self.generation: Generation | None = None
        self._options = options
        self.prefix = f"{manager.job}/training/{options.name}/"
        self._link = StoreLink(manager, options.store, self._introduce)
        self._lock = threading.Lock()
        """Guards what follows. Nobody waits for the store while holding it: the progress thread wants it, too."""
        self._beating: _Beating | None = None
        self._is_closed = False
        self._standing: Generation | None = None
        """The newest generation that this process has seen, also one of others: a new store must know it."""
        self._beat = itertools.count(1)
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._seen_in: TCPStore | None = None
        self._ended: set[str] = set()
        """Those whose presence was taken back before a lease of theirs can have run out: their processes have ended."""
        self._place_then: Place | None = None
        self._poll: Operation[dict[str, bytes]] | None = None
        self._polled_at = 0.0
        self._said: tuple[TCPStore, str, Announcement] | None = None
        self.limit: int | None = None
        """After so many steps the training is over; None: it has no end."""
        self.newcomers: tuple[str, ...] = ()
        """Those who wait to be admitted, as of the last look."""
        self.rules = options.rules
        self.complete: Callable[[Generation, Generation | None], Generation] = _as_agreed
        """Adds what follows from who goes on, before this member proposes it; given the generation before, too."""

    # ---- the store

    @property
    def store(self) -> TCPStore:
        """The store, connected. Raises StoreError if there is none within the time to join."""
        return self._link.store(self._options.join_timeout_s)

    def _introduce(self, store: TCPStore) -> None:
        """Tell a store of this member and of the generation that stands: else a newcomer there would begin anew."""
        introduced: Member | None = None
        while introduced is not self.member:  # it may become a newcomer meanwhile
            introduced = self.member
            wait_blocking(self._put_presence(store))
        if self._standing is not None:
            self._restore(store, self._standing)

    def _restore(self, store: TCPStore, generation: Generation) -> None:
        """Let the store know of no older generation than this. Others may do the same meanwhile."""
        key, desired = self.prefix + "generation", encode(replace(generation, was_restored=True))
        while True:
            record = wait_blocking(store.get(key))
            if record is not None and decode(Generation, record).number >= generation.number:
                return
            wait_blocking(store.compare_set(key, record, desired))

    def _put_presence(self, store: TCPStore) -> Operation[None]:
        key = f"{self.prefix}present/{self.member.id}"
        return store.set(key, encode(Presence(id=self.member.id, beat=next(self._beat))), lease=True)

    # ---- while a world stands

    def look_for_newcomers(self, every_s: float = 0.25) -> None:
        """Ask the store who waits, without waiting for its answer: it is in ``newcomers`` by the next step or so.

        The first member does so for all: its facts tell the others.
        """
        assert self.generation is not None
        if self.generation.members[0].id != self.member.id:
            return
        poll, now = self._poll, time.monotonic()
        if poll is not None and poll.done:
            if poll.error is None:
                members = {each.id for each in self.generation.members}
                come = [decode(Announcement, value).member for value in poll.result().values()]
                come = whole_replicas(come, self._options.rules.replica_size)
                self.newcomers = tuple(sorted(each.id for each in come if each.id not in members))
            self._poll = poll = None
        store = self._link.store_nowait()
        if poll is None and store is not None and now - self._polled_at > every_s:
            self._polled_at = now
            self._poll = store.entries(f"{self.prefix}said/{self.generation.number}/")

    def beat(self) -> None:
        """From now on say in the store that this process lives, for it is in no world. Any thread."""
        with self._lock:
            if self._beating is None and not self._is_closed:
                self._beating = _Beating(self._beat_once, self._options.lease_s / 4)

    def _beat_once(self) -> None:
        store = self._link.store_nowait()
        if store is not None:
            self._put_presence(store)

    def become(self, member: Member) -> None:
        """Be a newcomer from now on."""
        store = self._link.store_nowait()
        if store is not None:
            self._withdraw(store)
            store.discard([f"{self.prefix}present/{self.member.id}"])
        self.member, self.generation = member, None
        store = self._link.store_nowait()
        if store is not None:
            self._put_presence(store)

    def settled(self) -> None:
        """A world stands again."""
        with self._lock:
            beating, self._beating = self._beating, None
        if beating is not None:
            beating.stop()
        self._place_then = _place()
        self.newcomers = ()

    # ---- agreement

    def agree(
        self, announce: Callable[[], Announcement], lost: Callable[[], tuple[LostMember, ...]] = tuple
    ) -> Generation:
        """Return the next generation. This member is part of it. ``lost``: whom it has lost, which may become more.

        Raises PeerRaisedError if the program raised on a member, TooFewReplicasError, ExcludedError, and OverError on a
        newcomer that comes after the last step.
        """
        self.beat()
        began = time.monotonic()
        while True:
            try:
                return self._agree(announce(), lost, began)
            except StoreError as error:
                left_s = began + self._options.join_timeout_s - time.monotonic()
                if left_s <= 0:
                    raise
                logger.warning("the store was lost while members agreed (%s); looking for another", error)

    def _agree(self, mine: Announcement, lost: Callable[[], tuple[LostMember, ...]], began: float) -> Generation:
        store, pause, said_at = self.store, LOOK_S, began
        here_since = time.monotonic()
        known = self.generation
        mine = replace(mine, lost=lost())
        self._announce(store, mine, 0 if known is None else known.number)
        while True:
            asked = None if not self._is_launched else store.get(KEY)
            found = wait_blocking(store.entries(self.prefix))
            out = None if asked is None else wait_blocking(asked)
            now = time.monotonic()
            record = found.get(self.prefix + "generation")
            current = None if record is None else decode(Generation, record)
            if known is not None and (current is None or current.number < known.number):
                self._restore(store, known)  # another member told this store of an older one
                continue
            if current is not None and current.number > (-1 if known is None else known.number):
                self._standing = current
                place = current.place_of(self.member.id)
                if place >= 0:
                    self._withdraw(store)
                    self.generation, self.member = current, current.members[place]  # perhaps with another rank
                    return current
                if known is not None:
                    raise ExcludedError
            if (lost_by_now := lost()) != mine.lost:
                mine = replace(mine, lost=lost_by_now)
            self._announce(store, mine, 0 if current is None else current.number)
            situation = self._situation(store, found, current, here_since, began)
            if out is not None:
                situation = replace(situation, hosts_out=frozenset(decode(HostsOut, out).hosts))
            self._check_raised(situation)
            self._check_over(found, situation, mine)
            if current is None:
                self._check_all_alike(store, situation, mine)
            situation = self._without_strangers(situation, mine)
            outcome = agree(situation, self.rules)
            if isinstance(outcome, Wait):
                if now - began > self._options.join_timeout_s and outcome.missing:
                    raise TooFewReplicasError(outcome.needed - outcome.missing, outcome.needed, now - began)
                if now - said_at > SAY_EVERY_S:
                    said_at = now
                    logger.warning("training %r waits: %s", self._options.name, outcome.reason)
            else:
                place = outcome.place_of(self.member.id)
                if place >= 0 and now - here_since >= place * TAKE_OVER_S:
                    wait_blocking(
                        store.compare_set(self.prefix + "generation", record, encode(self.complete(outcome, current)))
                    )
                    continue
            time.sleep(pause)  # the store tells of no change to what is not known beforehand
            pause = min(MAX_LOOK_S, pause * 1.2)

    def _announce(self, store: TCPStore, mine: Announcement, number: int) -> None:
        key = f"{self.prefix}said/{number}/{self.member.id}"
        said = self._said
        if said is not None and said[0] is store and said[1] == key and said[2] is mine:
            return
        if said is not None and said[1] != key:
            self._withdraw(store)
        self._said = store, key, mine
        wait_blocking(store.set(key, encode(mine), lease=True))

    def _withdraw(self, store: TCPStore) -> None:
        if self._said is not None and self._said[0] is store:
            store.discard([self._said[1]])
        self._said = None

    def is_given_up(self, generation: Generation, since: float) -> bool:
        """Whether a member of a generation that is being formed has ended, is silent, or has given it up. Blocks.

        ``since``: when that began (monotonic); before, a member may have had a world, and did not beat. Nobody else
        notices that before there is a world. Raises StoreError.
        """
        store = self.store
        found = wait_blocking(store.entries(self.prefix))
        now = time.monotonic()
        present = self._look(store, found, now)
        others = [each.id for each in generation.members if each.id != self.member.id]
        gave_up = f"{self.prefix}said/{generation.number}/"
        return any(
            each not in present
            or gave_up + each in found
            or now - max(present[each], since) > self._options.lease_s + SILENT_MORE_S
            for each in others
        )

    def _look(self, store: TCPStore, found: dict[str, bytes], now: float) -> dict[str, float]:
        """Return who is present, and when each one's beat was seen to change last."""
        if self._seen_in is not store:
            self._seen_in = store
            self._seen.clear()
            self._ended.clear()
        prefix = self.prefix + "present/"
        beats = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
        for gone in self._seen.keys() - beats.keys():
            _, beat_at = self._seen.pop(gone)
            if now - beat_at < self._options.lease_s / 2:
                self._ended.add(gone)
        for member, beat in beats.items():
            before = self._seen.get(member)
            if before is None or before[0] != beat:
                self._seen[member] = (beat, now)
        return {member: at for member, (_, at) in self._seen.items()}

    def _situation(
        self, store: TCPStore, found: dict[str, bytes], current: Generation | None, here_since: float, began: float
    ) -> Situation:
        now = time.monotonic()
        present = self._look(store, found, now)
        said_now = f"{self.prefix}said/{0 if current is None else current.number}/"
        said = {
            key.removeprefix(said_now): decode(Announcement, value)
            for key, value in found.items()
            if key.startswith(said_now)
        }
        silent: frozenset[str] = frozenset()
        if current is not None and current.place_of(self.member.id) >= 0:
            # Their world is the one that this member has left, so they beat. A newcomer can't tell who is in a world.
            members = {each.id for each in current.members} - {self.member.id}
            limit_s = self._options.lease_s + SILENT_MORE_S
            silent = frozenset(
                each for each, at in present.items() if each in members and now - max(at, began) > limit_s
            )
        return Situation(
            current=current,
            here=frozenset(present),
            said=said,
            silent=silent,
            waited_s=now - here_since,
            is_confirmed=self._is_confirmed(now - began),
            ended=frozenset(self._ended),
        )

    def _is_confirmed(self, waited_s: float) -> bool | None:
        """Whether this host is on the side that goes on: an agent that is cut off has ended its workers before long."""
        place = _place()
        if place is None or not self._is_launched:
            return None
        then = self._place_then
        return waited_s > FENCE_S or (then is not None and place.generation > then.generation)

    @property
    def _is_launched(self) -> bool:
        """Whether the launcher serves the store, and says on which hosts nothing goes on."""
        return self._options.store is None and process_link() is not None

    def _check_raised(self, situation: Situation) -> None:
        current = situation.current
        if current is None or current.place_of(self.member.id) < 0:
            return
        for member in current.members:
            announcement = situation.said.get(member.id)
            if announcement is not None and announcement.raised and member.id != self.member.id:
                raised, traceback = announcement.raised, announcement.traceback
                raise PeerRaisedError(member.rank, announcement.step, raised, traceback) from None

    def _check_over(self, found: dict[str, bytes], situation: Situation, mine: Announcement) -> None:
        """Raises OverError for one without the state that comes when all the others have ended well."""
        value, current = found.get(self.prefix + "over"), situation.current
        if value is None or current is None or mine.has_state or self.limit is None:
            return
        over = decode(TrainingOver, value)
        is_of_now = over.generation == current.number and over.generation > _ended_here.get(self.prefix, -1)
        others = [each for each in current.members if each.id != self.member.id and each.id not in current.stateless]
        if is_of_now and over.step >= self.limit and not any(each.id in situation.here for each in others):
            raise OverError(over.step)

    def _without_strangers(self, situation: Situation, mine: Announcement) -> Situation:
        """Leave out newcomers with other settings; they end by themselves. Raises SetupError if that is this member."""
        current, me = situation.current, self.member.id
        if current is not None and current.place_of(me) < 0 and current.digest:
            _check_alike(mine.digest, current.digest, self.member.rank, "the members that train already")
        said = {key: each for key, each in situation.said.items() if not differences(mine.digest, each.digest)}
        return replace(situation, said=said)

    def _check_all_alike(self, store: TCPStore, situation: Situation, mine: Announcement) -> None:
        """Nobody trains yet. Raises SetupError on all that differ: each one stays until the others have seen it."""
        others = [each for each in situation.said.values() if differences(mine.digest, each.digest)]
        if not others:
            return
        prefix = self.prefix + "differs/"
        wait_blocking(store.set(prefix + self.member.id, b"", lease=True))
        until = time.monotonic() + SAY_S
        while time.monotonic() < until:
            here = wait_blocking(store.entries(self.prefix))
            if all(
                prefix + each.member.id in here or self.prefix + f"said/0/{each.member.id}" not in here
                for each in others
            ):
                break
            time.sleep(LOOK_S)
        for each in others:
            _check_alike(mine.digest, each.digest, self.member.rank, f"rank {each.member.rank}")

    # ---- the end

    def say_raised(self, announcement: Announcement) -> int:
        """Tell the others that the program raised here. It stays in the store after this process has ended.

        Returns in how many generations it has raised in that step, over all starts of the training.
        """
        if self.generation is None:
            return 1
        key = f"{self.prefix}said/{self.generation.number}/{self.member.id}"
        tries = f"{self.prefix}tries/{announcement.step}/"
        try:
            store = self._link.store(SAY_S)
            wait_blocking(store.set(tries + str(self.generation.number), b""))  # one, however many ranks raise
            wait_blocking(store.set(key, encode(announcement)))
            return len(wait_blocking(store.entries(tries)))
        except StoreError as error:
            logger.warning("the other ranks are not told of the error here, they lose this one: %s", error)
            return 1

    def say_over(self, step: int) -> None:
        """All members have done all steps: a newcomer must not begin anew."""
        if self.generation is None:
            return
        _ended_here[self.prefix] = self.generation.number
        record = encode(TrainingOver(step=step, generation=self.generation.number))
        try:
            wait_blocking(self._link.store(SAY_S).set(self.prefix + "over", record))
        except StoreError as error:
            logger.info("the store is not told that the training is over: %s", error)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self.settled()
        self._link.close()


class _Beating:
    """A thread that calls back until it is stopped."""

    def __init__(self, call: Callable[[], None], every_s: float) -> None:
        self._call, self._every_s = call, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="multiworld-training-beat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._call()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _check_alike(mine: str, theirs: str, rank: int, others: str) -> None:
    parts = differences(mine, theirs)
    if parts:
        raise SetupError(
            f"rank {rank} and {others} differ in: {', '.join(sorted(parts))}. All ranks must build the same model, "
            "optimizers and loader, with the same options"
        )


def _as_agreed(generation: Generation, before: Generation | None) -> Generation:
    return generation


def new_member(rank: int, host: str) -> Member:
    return Member(id=os.urandom(8).hex(), rank=rank, host=host, pid=os.getpid())


def _place() -> Place | None:
    link = process_link()
    return None if link is None else link.place

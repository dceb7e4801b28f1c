"""Carry out the agreement: what this member writes into the store and reads there, until a generation stands."""

from __future__ import annotations

import contextlib
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
from ...world.launcher.launched import Place
from ...world.launcher.process_link import process_link
from ...world.manager import WorldManager
from ..errors import PeerRaisedError, SetupError, TooFewReplicasError
from .agreement import Rules, Situation, Wait, agree, differences
from .records import Announcement, Generation, Member, Presence

logger = logging.getLogger(__name__)

LOOK_S, MAX_LOOK_S = 0.002, 0.05
TAKE_OVER_S = 0.05  # a proposer that is slower than that leaves it to the next
FENCE_S = 1.0  # an agent that is cut off has ended its workers by then
DIAL_S = 2.0
SAY_EVERY_S = 10.0


class OverError(Exception):
    """The training has done all its steps already."""


class ExcludedError(Exception):
    """The others went on without this member; it may come back as a newcomer."""


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
        self._manager, self._options = manager, options
        self.prefix = f"{manager.job}/training/{options.name}/"
        self._store: TCPStore | None = None
        self._store_url = ""
        self._beat = 0
        self._beating: _Beating | None = None
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._place_then: Place | None = None
        self._poll: Operation[dict[str, bytes]] | None = None
        self._polled_at = 0.0
        self._said: str | None = None
        self.limit: int | None = None
        """After so many steps the training is over."""
        self.newcomers: tuple[str, ...] = ()
        """Those who wait to be admitted, as of the last look."""

    # ---- the store

    @property
    def store(self) -> TCPStore:
        """The store, connected. Raises StoreError if there is none within the time to join."""
        if self._store is None or self._store.lost_reason is not None:
            self._connect(self._options.join_timeout_s)
        assert self._store is not None
        return self._store

    def _connect(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        last: Exception | None = None
        while time.monotonic() < deadline:
            url = self._options.store or _launchers_store(deadline)
            try:
                store = wait_blocking(self._manager.start_store_client(url, min(DIAL_S, timeout_s)))
                self._store, self._store_url = store, url
                self._seen.clear()
                self._said = None
                self._put_presence()
                self._restore()
                return
            except StoreError as error:
                last = error
        raise last if last is not None else StoreError(self._options.store or "", "there is none")

    def _restore(self) -> None:
        """Tell a new store of the generation that stands: else a newcomer there begins a training of its own."""
        current = self.generation
        if current is not None and self._store is not None:
            record = encode(replace(current, was_restored=True))
            wait_blocking(self._store.compare_set(self.prefix + "generation", None, record))

    def _put_presence(self) -> None:
        assert self._store is not None
        self._beat += 1
        key = f"{self.prefix}present/{self.member.id}"
        wait_blocking(self._store.set(key, encode(Presence(id=self.member.id, beat=self._beat)), lease=True))

    # ---- while a world stands

    def look_for_newcomers(self, every_s: float = 0.25) -> None:
        """Ask the store who waits, without waiting for its answer: it is in ``newcomers`` by the next step or so."""
        assert self.generation is not None
        poll, now = self._poll, time.monotonic()
        if poll is not None and poll.done:
            if poll.error is None:
                members = {each.id for each in self.generation.members}
                come = [decode(Announcement, value).member for value in poll.result().values()]
                self.newcomers = tuple(sorted(each.id for each in come if each.id not in members))
            self._poll = poll = None
        if self._store is not None and self._store.lost_reason is not None:
            if now - self._polled_at > every_s:
                self._polled_at = now
                self._try_to_reconnect()
        elif poll is None and self._store is not None and now - self._polled_at > every_s:
            self._polled_at = now
            self._poll = self._store.entries(f"{self.prefix}said/{self.generation.number}/")

    def _try_to_reconnect(self) -> None:
        place = None if process_link() is None else _place()
        url = self._options.store or (place.store if place is not None else "")
        if not url or (url == self._store_url and self._options.store is None):
            return  # the launcher has no other store yet
        try:
            self._connect(0.5)
        except StoreError as error:
            logger.info("the store cannot be reached at present, which the training does not need: %s", error)

    def beat(self) -> None:
        """From now on say in the store that this process lives, for it is in no world. Any thread."""
        if self._beating is None:
            self._beating = _Beating(self._beat_once, self._options.lease_s / 4)

    def _beat_once(self) -> None:
        store = self._store
        if store is not None and store.lost_reason is None:
            self._beat += 1
            key = f"{self.prefix}present/{self.member.id}"
            store.set(key, encode(Presence(id=self.member.id, beat=self._beat)), lease=True)

    def become(self, member: Member) -> None:
        """Be a newcomer from now on."""
        self._withdraw()
        if self._store is not None:
            self._store.discard([f"{self.prefix}present/{self.member.id}"])
        self.member, self.generation = member, None
        if self._store is not None and self._store.lost_reason is None:
            self._put_presence()

    def settled(self) -> None:
        """A world stands again."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.stop()
        self._place_then = _place()
        self.newcomers = ()

    # ---- agreement

    def agree(self, announce: Callable[[], Announcement], *, world_stands: Callable[[], bool]) -> Generation:
        """Return the next generation, of which this member is one.

        Raises PeerRaisedError if the program raised on a member, TooFewReplicasError, ExcludedError, and OverError on a
        newcomer that comes after the last step.
        """
        self.beat()
        began = time.monotonic()
        while True:
            try:
                return self._agree(announce(), began, world_stands)
            except StoreError as error:
                logger.warning("the store was lost while members agreed (%s); looking for another", error)

    def _agree(self, mine: Announcement, began: float, world_stands: Callable[[], bool]) -> Generation:
        store, pause, said_at = self.store, LOOK_S, began
        self._announce(mine)
        while True:
            found = wait_blocking(store.entries(self.prefix))
            now = time.monotonic()
            record = found.get(self.prefix + "generation")
            current = None if record is None else decode(Generation, record)
            known = self.generation
            if known is not None and (current is None or current.number < known.number):
                self._restore()  # another member told an older one
                if record is not None:
                    wait_blocking(store.compare_set(self.prefix + "generation", record, encode(known)))
                continue
            if current is not None and current.number > (-1 if known is None else known.number):
                if current.place_of(self.member.id) >= 0:
                    self._withdraw()
                    self.generation = current
                    return current
                if known is not None:
                    raise ExcludedError
            over = found.get(self.prefix + "over")
            if known is None and over is not None and self.limit is not None and int(over) >= self.limit:
                self._withdraw()
                raise OverError
            self._announce(mine, 0 if current is None else current.number)
            situation = self._situation(found, current, now, began, world_stands())
            self._check_raised(situation)
            situation = self._without_strangers(situation, mine)
            outcome = agree(situation, self._options.rules)
            if isinstance(outcome, Wait):
                if now - began > self._options.join_timeout_s and outcome.missing:
                    needed = self._options.rules.min_members
                    raise TooFewReplicasError(needed - outcome.missing, needed, now - began)
                if now - said_at > SAY_EVERY_S:
                    said_at = now
                    logger.warning("training %r waits: %s", self._options.name, outcome.reason)
            else:
                place = outcome.place_of(self.member.id)
                if place >= 0 and now - began >= place * TAKE_OVER_S:
                    wait_blocking(store.compare_set(self.prefix + "generation", record, encode(outcome)))
                    continue
            time.sleep(pause)  # the store tells of no change to what is not known beforehand
            pause = min(MAX_LOOK_S, pause * 1.2)

    def _announce(self, mine: Announcement, number: int | None = None) -> None:
        if number is None:
            number = 0 if self.generation is None else self.generation.number
        key = f"{self.prefix}said/{number}/{self.member.id}"
        if key == self._said:
            return
        self._withdraw()
        self._said = key
        wait_blocking(self.store.set(key, encode(mine), lease=True))

    def _withdraw(self) -> None:
        if self._said is not None and self._store is not None:
            self._store.discard([self._said])
        self._said = None

    def _situation(
        self, found: dict[str, bytes], current: Generation | None, now: float, began: float, world_stands: bool
    ) -> Situation:
        number = 0 if current is None else current.number
        here, said, silent = set(), {}, set()
        for key, value in found.items():
            kind, _, rest = key.removeprefix(self.prefix).partition("/")
            if kind == "present":
                here.add(rest)
                before = self._seen.get(rest)
                if before is None or before[0] != value:
                    self._seen[rest] = (value, now)
                elif not world_stands and now - max(before[1], began) > self._options.lease_s + 0.25:
                    silent.add(rest)
            elif kind == "said" and rest.startswith(f"{number}/"):
                said[rest.partition("/")[2]] = decode(Announcement, value)
        return Situation(
            current=current,
            here=frozenset(here),
            said=said,
            silent=frozenset(silent),
            waited_s=now - began,
            is_confirmed=self._is_confirmed(now - began),
        )

    def _is_confirmed(self, waited_s: float) -> bool | None:
        """Whether this host is on the side that goes on: an agent that is cut off has ended its workers before long."""
        place = _place()
        if place is None or self._options.store is not None:
            return None
        then = self._place_then
        return waited_s > FENCE_S or (then is not None and place.generation > then.generation)

    def _check_raised(self, situation: Situation) -> None:
        current = situation.current
        if current is None or current.place_of(self.member.id) < 0:
            return
        for member in current.members:
            announcement = situation.said.get(member.id)
            if announcement is not None and announcement.raised and member.id != self.member.id:
                raise PeerRaisedError(member.rank, announcement.step, announcement.raised, announcement.traceback)

    def _without_strangers(self, situation: Situation, mine: Announcement) -> Situation:
        """Leave out newcomers with other settings; they end by themselves. Raises SetupError if that is this member."""
        current, me = situation.current, self.member.id
        if current is not None and current.place_of(me) < 0 and current.digest:
            _check_alike(mine.digest, current.digest, self.member.rank, "the members that train already")
        if current is None:
            for each in situation.said.values():
                _check_alike(mine.digest, each.digest, self.member.rank, f"rank {each.member.rank}")
        said = {key: each for key, each in situation.said.items() if not differences(mine.digest, each.digest)}
        return replace(situation, said=said)

    # ---- the end

    def say_raised(self, announcement: Announcement) -> None:
        """Tell the others that the program raised here. It stays in the store after this process has ended."""
        if self.generation is not None:
            key = f"{self.prefix}said/{self.generation.number}/{self.member.id}"
            wait_blocking(self.store.set(key, encode(announcement)))

    def num_tries(self, step: int) -> int:
        """Count a failure of the program in that step; returns how many there were, over all starts of the training."""
        return wait_blocking(self.store.add(f"{self.prefix}tries/{step}", 1))

    def say_over(self, step: int) -> None:
        """So many steps are done, and no more will be: who comes now must not begin anew. Needs no store that lives."""
        if self._store is not None and self._store.lost_reason is None:
            with contextlib.suppress(StoreError):
                wait_blocking(self._store.set(self.prefix + "over", str(step).encode()))

    def close(self) -> None:
        self.settled()
        store, self._store = self._store, None
        if store is not None:
            store.close()


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


def new_member(rank: int, host: str) -> Member:
    return Member(id=os.urandom(8).hex(), rank=rank, host=host, pid=os.getpid())


def _place() -> Place | None:
    link = process_link()
    return None if link is None else link.place


def _launchers_store(deadline: float) -> str:
    link = process_link()
    if link is None:
        raise StoreError("", "no launcher started this process, so store= is needed")
    while time.monotonic() < deadline:
        place = link.place
        if place is not None and place.store:
            return place.store
        changed = threading.Event()
        link.next_place(place).add_callback(lambda _, changed=changed: changed.set())  # type: ignore[misc]
        changed.wait(min(1.0, max(0.0, deadline - time.monotonic())))
    raise StoreError("", "the launcher has no store at present")

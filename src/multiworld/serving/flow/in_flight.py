"""What a sender has promised to deliver to one stage: who holds it, who may get more, and who gets it instead. Pure.

An item stays here from ``put`` until a replica says that *its* successor has accepted the result (*custody transfer*):
what a lost replica held is sent to another one, from here. Each replica grants credit, in requests and in bytes; what
finds none waits here.

Two things keep one failure from becoming many. A replica that answers no more while others do is *suspect*
(``suspicion``): it is offered nothing and its items are tried elsewhere, within a budget, until it answers. An item
that was at a replica when that died is *marked*: the next replica executes it alone, and says so first to all that send
to it, so that a second death is blamed on it and on nothing beside it. At ``retry.MAX_DEATHS`` it is refused. Once it
is known what the replica was executing, all else that was there is *cleared*.

All senders of a stage that joins several inputs choose the same replica for a request, by its id. When replicas come or
go they choose anew at different moments, and parts of one request lie at different replicas: those are *recalled*, and
whatever has not been joined comes back and goes to where it now belongs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .holder import Holder
from .retry import MAX_DEATHS, ReplayBudget
from .routing import Policy, rendezvous
from .suspicion import Suspicion


@dataclass(frozen=True)
class Refusal:
    """An item that is not tried again. ``deaths``: of replicas, by its doing; 0: it must not be executed twice."""

    key: bytes
    peer: str
    deaths: int


@dataclass(frozen=True)
class InFlightCounts:
    """``waiting``: of ``items``, those that no replica has room for. ``replicas``: what is known of each."""

    items: int
    waiting: int
    held_bytes: int
    replayed: int
    replicas: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Loss:
    """What the loss of a replica ends here: ``refused`` may not go to another one, ``ended`` was for it alone.

    ``cleared``: what replicas need not execute alone any more.
    """

    refused: tuple[Refusal, ...] = ()
    ended: tuple[bytes, ...] = ()
    cleared: Mapping[str, Sequence[bytes]] = field(default_factory=dict)


class _Item:
    __slots__ = (
        "deaths", "holders", "is_suspected", "is_waiting", "marked_by", "replayed", "route", "size_bytes", "target",
        "waits_since", "was_cleared",
    )  # fmt: skip

    def __init__(self, size_bytes: int, route: bytes, target: str | None, now: float) -> None:
        self.size_bytes, self.route, self.target = size_bytes, route, target
        self.holders: set[str] = set()
        self.deaths = 0
        self.is_suspected = False
        """Whether it is marked for a death that nobody here has seen."""
        self.marked_by = ""
        """Whose death it was marked for because it was there, among others."""
        self.was_cleared = False
        self.replayed = False
        self.is_waiting = True
        self.waits_since = now


class InFlight:
    """All items of one sender for one stage, by their ids."""

    def __init__(
        self,
        policy: Policy,
        *,
        idempotent: bool = True,
        repeatable: bool = True,
        merging: bool = False,
        max_bytes: int = 64 << 20,
    ) -> None:
        """``repeatable``: no stage from this one on refuses what may have been executed before: a slow replica need not
        be waited for. ``merging``: the stage joins several inputs, so all its senders must choose the same replica.

        Such a stage grants no credit worth the name: with every window full of parts whose other parts wait for credit,
        none would ever be joined. ``max_bytes``: the credit of each replica in bytes; a single item may exceed it.
        """
        self._policy, self._idempotent, self._merging = policy, idempotent, merging
        self._tries_elsewhere = idempotent and repeatable and not merging
        self._max_bytes = max_bytes
        self._peers: dict[str, Holder] = {}
        self._items: dict[bytes, _Item] = {}
        self._waiting: deque[bytes] = deque()
        self._bound: dict[str, deque[bytes]] = {}  # waiting for one replica only
        self._executing: dict[str, frozenset[bytes]] = {}
        """Of replicas that are lost, as is known, while their edges stand."""
        self._suspicion, self._replays = Suspicion(), ReplayBudget()
        self._now = 0.0  # when it was asked last
        self.held_bytes = 0
        self.num_replayed = 0
        """Items that were sent a second time, ever."""

    # ---- replicas

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(self._peers)

    @property
    def awaited(self) -> set[str]:
        """Replicas for which items wait that are for them alone."""
        return set(self._bound)

    @property
    def num_live(self) -> int:
        """Replicas that may be offered something, suspects included."""
        return sum(not peer.closed for peer in self._peers.values())

    def open(self, peer: str, window: int, *, now: float) -> None:
        """From now on the replica may be given ``window`` items at a time; opened again, it goes on with that."""
        known = self._peers.get(peer)
        if known is None:
            self._peers[peer] = Holder(peer, window, now)
        else:
            known.window, known.closed = window, False

    def grant(self, peer: str, window: int) -> None:
        """Its credit is another one now. Unknown replicas are ignored: it may just have gone."""
        known = self._peers.get(peer)
        if known is not None:
            known.window = window

    def close(self, peer: str) -> None:
        """Offer it nothing new; what it holds it may finish."""
        known = self._peers.get(peer)
        if known is not None:
            known.closed = True

    def misplaced(self) -> list[tuple[str, bytes]]:
        """Of a stage that joins inputs: what lies at another replica than it would be sent to now.

        Whatever has not been begun there comes back by ``returned``.
        """
        alive = [peer for peer in self._peers.values() if not peer.closed]
        if not self._merging or not alive:
            return []
        return [
            (peer.name, key)
            for peer in self._peers.values()
            for key in peer.held
            if (item := self._items.get(key)) is not None and rendezvous(alive, item.route) is not peer
        ]

    def returned(self, peer: str, keys: Iterable[bytes]) -> None:
        """The replica never began these, and has them no more: they are sent again, as if for the first time."""
        known = self._peers.get(peer)
        again: list[bytes] = []
        for key in keys if known is not None else ():
            assert known is not None
            known.drop(key)
            item = self._items.get(key)
            if item is not None and peer in item.holders:
                item.holders.discard(peer)
                if not item.holders and not item.is_waiting:
                    item.is_waiting, item.waits_since = True, self._now
                    again.append(key)
        for key in reversed(again):
            self._queue_of(self._items[key]).appendleft(key)

    def down(self, peer: str, *, is_gone: bool = True) -> Loss:
        """It is lost: what it held goes to others, but for what is returned.

        What is for it alone waits for it, until it ``is_gone`` for good.
        """
        lost = self._peers.pop(peer, None)
        ended = [key for key in self._bound.pop(peer, ()) if key in self._items] if is_gone else []
        refused: list[Refusal] = []
        again: list[bytes] = []
        kept: list[bytes] = []
        for key in () if lost is None else lost.held:
            item = self._items.get(key)
            if item is None or peer not in item.holders:
                continue
            item.holders.discard(peer)
            if item.target is not None:
                (ended if is_gone else kept).append(key)
            elif not item.holders and not item.is_waiting:  # else another one has it, or will
                assert lost is not None
                refusal = self._judge(lost, key, item)
                if refusal is None:
                    again.append(key)
                else:
                    refused.append(refusal)
        self._wait_again(again)
        for key in reversed(kept):
            item = self._items[key]
            item.is_waiting = True
            self._queue_of(item).appendleft(key)
        for key in (*ended, *(refusal.key for refusal in refused)):
            self._forget(key)
        executing = self._executing.pop(peer, None)
        cleared = {} if executing is None else self._clear(peer, executing)
        return Loss(tuple(refused), tuple(ended), cleared)

    def _judge(self, lost: Holder, key: bytes, item: _Item) -> Refusal | None:
        if not self._idempotent:
            return Refusal(key, lost.name, 0)
        # What is marked says so before it is executed: without that it had no part in this death.
        if key in lost.started:
            item.deaths += not item.is_suspected  # a death that is no more than possible is none of the two
            item.is_suspected, item.marked_by = False, ""
        elif not (lost.started or item.deaths):
            item.deaths, item.marked_by = 1, lost.name
        return Refusal(key, lost.name, item.deaths) if item.deaths >= MAX_DEATHS else None

    def learn(self, peer: str, executing: Iterable[bytes]) -> dict[str, list[bytes]]:
        """The replica was lost, or will be, and this is what it executed then: what else it held is marked no more.

        Return for each replica what it need not execute alone any more. Each item is cleared once only: it may have
        been the cause all the same, as where a replica dies when it takes the result over.
        """
        known = frozenset(executing)
        if peer in self._peers:  # the edge has not broken yet
            self._executing[peer] = known
            return {}
        return self._clear(peer, known)

    def _clear(self, peer: str, executing: frozenset[bytes]) -> dict[str, list[bytes]]:
        cleared: dict[str, list[bytes]] = {}
        for key, item in self._items.items():
            if item.marked_by == peer and key not in executing and not item.was_cleared:
                item.deaths, item.marked_by, item.was_cleared = 0, "", True
                for holder in item.holders:
                    cleared.setdefault(holder, []).append(key)
        return cleared

    # ---- items

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: bytes) -> bool:
        return key in self._items

    @property
    def num_waiting(self) -> int:
        """Items that no replica holds, those counted that wait for credit."""
        return sum(item.is_waiting for item in self._items.values())

    def waited_s(self, now: float) -> float:
        """Return how long the first item has waited that no replica has room for; 0 while there is no replica."""
        if not self._waiting or not self.num_live:
            return 0.0
        item = self._items.get(self._waiting[0])
        return now - item.waits_since if item is not None and item.is_waiting else 0.0

    def put(
        self,
        key: bytes,
        size_bytes: int,
        *,
        now: float,
        route: bytes = b"",
        target: str | None = None,
        replayed: bool = False,
        is_suspected: bool = False,
    ) -> None:
        """Hold an item. ``target``: it is for this replica alone. Put again, it is sent again.

        ``replayed``: some replica may have executed it before. ``is_suspected``: and died of it, elsewhere; so it is
        marked from the beginning.
        """
        former = self._items.get(key)
        self._forget(key)
        item = self._items[key] = _Item(size_bytes, route, target, now)
        item.replayed, item.deaths, item.is_suspected = replayed, int(is_suspected), is_suspected
        if former is not None:
            item.replayed = replayed or former.replayed or bool(former.holders)
            item.marked_by, item.was_cleared = former.marked_by, former.was_cleared
            is_known = bool(former.marked_by) or former.was_cleared  # here, better than by whoever sends it again
            if is_known or former.deaths:
                item.deaths, item.is_suspected = former.deaths, former.is_suspected
        self.held_bytes += size_bytes
        self._queue_of(item).append(key)

    def assign(self, *, now: float) -> Iterator[tuple[bytes, str]]:
        """Yield what is to be sent now, and to whom, oldest first, as long as there is credit."""
        self._now = now
        for target in list(self._bound):
            yield from self._assign_bound(target, now)
        while self._waiting:
            key = self._waiting[0]
            item = self._items.get(key)
            if item is None or not item.is_waiting:
                self._waiting.popleft()
                continue
            peer = self._choose(item)
            if peer is None and (not item.holders or self._others(item)):
                return
            self._waiting.popleft()
            if peer is None:  # it was to be tried elsewhere, and there is no elsewhere: who has it keeps it
                item.is_waiting = False
                continue
            yield self._hold(key, item, peer, now)

    def marked(self, key: bytes) -> int:
        """Return how many deaths the item is suspected of: above 0, it is executed alone."""
        item = self._items.get(key)
        return 0 if item is None else item.deaths

    def was_replayed(self, key: bytes) -> bool:
        """Return whether some replica may have executed the item before."""
        item = self._items.get(key)
        return item is not None and item.replayed

    def started(self, peer: str, keys: Iterable[bytes]) -> None:
        """The replica says what it executes alone from now on, of this sender or of another; none: it is done."""
        known = self._peers.get(peer)
        if known is not None:
            known.started = set(keys)

    def executed(self, peer: str, keys: Iterable[bytes], *, now: float) -> None:
        """The replica has done these. It keeps them still, but whatever is sent to it need not wait for them."""
        known = self._peers.get(peer)
        for key in keys if known is not None else ():
            assert known is not None
            self._done(known, key, now)

    def released(self, peer: str, keys: Iterable[bytes], *, now: float) -> dict[bytes, tuple[str, ...]]:
        """The replica is done with these; return those that this ended here, each with the others that hold it too."""
        known = self._peers.get(peer)
        ended: dict[bytes, tuple[str, ...]] = {}
        for key in keys:
            if known is not None:
                self._done(known, key, now)
                known.drop(key)
            item = self._items.get(key)
            if item is not None and peer in item.holders:
                self._forget(key)
                ended[key] = tuple(item.holders - {peer}) if len(item.holders) > 1 else ()
        return ended

    def drop(self, key: bytes) -> list[str]:
        """Give an item up (answered, cancelled, too late); return the replicas that hold it."""
        item = self._items.get(key)
        if item is None:
            return []
        holders = list(item.holders)
        self._forget(key)
        return holders

    # ---- suspicion

    def check(self, *, now: float) -> bool:
        """Look for replicas that answer no more while others do; return whether there is something to send elsewhere.

        To be called several times a second.
        """
        self._now = now
        since = self._suspicion.check(self._peers.values(), now=now)
        moved = False
        for peer in self._peers.values():
            if peer.suspect and self._tries_elsewhere:
                moved = self._try_elsewhere(peer, since) or moved
        return moved

    def suspects(self) -> tuple[str, ...]:
        return tuple(name for name, peer in self._peers.items() if peer.suspect)

    def statistics(self) -> InFlightCounts:
        return InFlightCounts(
            items=len(self),
            waiting=self.num_waiting,
            held_bytes=self.held_bytes,
            replayed=self.num_replayed,
            replicas={name: peer.statistics() for name, peer in self._peers.items()},
        )

    # ---- inside

    def _choose(self, item: _Item) -> Holder | None:
        peers = self._peers.values()
        if self._merging:
            alive = [peer for peer in peers if not peer.closed]
            chosen = rendezvous(alive, item.route) if alive else None
            return chosen if chosen is not None and len(chosen.held) < chosen.window else None  # type: ignore[attr-defined, return-value]
        free = [
            peer
            for peer in peers
            if not (peer.closed or peer.suspect) and self._has_credit(peer, item) and peer.name not in item.holders
        ]
        if not free:
            free = self._last_resort(item)
        if not free:
            return None
        return free[0] if len(free) == 1 else self._policy.choose(free, item.route)  # type: ignore[return-value]

    def _last_resort(self, item: _Item) -> list[Holder]:
        """Suspects, when there is nobody else who could have credit again."""
        others = self._others(item)
        if any(not peer.suspect for peer in others):
            return []
        return [peer for peer in others if self._has_credit(peer, item)]

    def _others(self, item: _Item) -> list[Holder]:
        """Return who may be offered the item, with credit or without."""
        return [peer for peer in self._peers.values() if not peer.closed and peer.name not in item.holders]

    def _has_credit(self, peer: Holder, item: _Item) -> bool:
        return peer.has_credit(item.size_bytes, self._max_bytes)

    def _hold(self, key: bytes, item: _Item, peer: Holder, now: float) -> tuple[bytes, str]:
        peer.hold(key, item.size_bytes, now)
        item.holders.add(peer.name)
        item.is_waiting = False
        self._replays.sent()
        return key, peer.name

    def _done(self, peer: Holder, key: bytes, now: float) -> None:
        latency_s = peer.done(key, now)
        if latency_s is not None:
            self._suspicion.answered(peer, latency_s)

    def _queue_of(self, item: _Item) -> deque[bytes]:
        return self._waiting if item.target is None else self._bound.setdefault(item.target, deque())

    def _assign_bound(self, target: str, now: float) -> Iterator[tuple[bytes, str]]:
        queue, peer = self._bound[target], self._peers.get(target)
        while queue:
            key = queue[0]
            item = self._items.get(key)
            if item is None or not item.is_waiting:
                queue.popleft()
                continue
            if peer is None or not self._has_credit(peer, item):
                return
            queue.popleft()
            yield self._hold(key, item, peer, now)
        del self._bound[target]

    def _wait_again(self, keys: list[bytes]) -> None:
        for key in reversed(keys):
            item = self._items[key]
            item.is_waiting = item.replayed = True
            item.waits_since = self._now
            self.num_replayed += 1
            self._queue_of(item).appendleft(key)

    def _forget(self, key: bytes) -> None:
        """The replicas that hold it still count it until they release it: their credit is theirs."""
        item = self._items.pop(key, None)
        if item is not None:
            self.held_bytes -= item.size_bytes

    def _try_elsewhere(self, peer: Holder, sent_before: float) -> bool:
        again: list[bytes] = []
        for key, held in peer.held.items():
            if held.sent_at > sent_before:
                break
            item = self._items.get(key)
            if item is None or item.is_waiting or item.target is not None or item.holders != {peer.name}:
                continue
            if all(other.suspect for other in self._others(item)):
                break
            if not self._replays.take():
                break
            again.append(key)
        self._wait_again(again)
        return bool(again)

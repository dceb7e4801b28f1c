"""Whatever happens to replicas: nothing in flight is lost, sent where it must not be, or ended twice."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.serving.flow.in_flight import InFlight
from multiworld.serving.flow.routing import POLICIES, make_policy

PEERS = ("r-1", "r-2", "r-3", "r-4")
MAX_BYTES = 100
FOREVER = 1 << 16

OPERATIONS = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(PEERS), st.integers(1, 6)),
    st.tuples(st.just("grant"), st.sampled_from(PEERS), st.integers(1, 6)),
    st.tuples(st.just("close"), st.sampled_from(PEERS), st.just(0)),
    st.tuples(st.just("down"), st.sampled_from(PEERS), st.just(0)),
    st.tuples(st.just("put"), st.sampled_from(("", *PEERS)), st.integers(0, 90)),
    st.tuples(st.just("again"), st.just(""), st.integers(0, 1000)),
    st.tuples(st.just("released"), st.sampled_from(PEERS), st.integers(0, 5)),
    st.tuples(st.just("told"), st.sampled_from(PEERS), st.integers(0, 5)),
    st.tuples(st.just("returned"), st.sampled_from(PEERS), st.integers(0, 5)),
    st.tuples(st.just("started"), st.sampled_from(PEERS), st.integers(0, 5)),
    st.tuples(st.just("drop"), st.just(""), st.integers(0, 1000)),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 600)),
)


class Model:
    """What replicas really hold, and what has become of each item."""

    def __init__(self, policy: str, *, idempotent: bool, merging: bool) -> None:
        self.in_flight = InFlight(
            make_policy(policy, lambda n: n - 1), idempotent=idempotent, merging=merging, max_bytes=MAX_BYTES
        )
        self.idempotent, self.merging = idempotent, merging
        self.now = 0.0
        self.live: dict[str, int] = {}
        self.closed: set[str] = set()
        self.at: dict[str, dict[bytes, int]] = {}
        self.executed: dict[bytes, int] = {}
        self.told: dict[str, set[bytes]] = {}
        self.open: dict[bytes, tuple[int, str]] = {}
        self.ended: set[bytes] = set()
        self.num = 0

    def do(self, name: str, peer: str, number: int) -> None:
        operation: Callable[[str, int], None] = getattr(self, f"_{name}")
        operation(peer, number)
        self.pump()
        assert set(self.open) == {key for key in self.open if key in self.in_flight}
        assert len(self.in_flight) == len(self.open)
        assert self.in_flight.held_bytes == sum(size for size, _ in self.open.values())

    def pump(self) -> None:
        for key, peer in self.in_flight.assign(now=self.now):
            size, target = self.open[key]
            assert peer in self.live
            assert not target or target == peer
            assert target or peer not in self.closed
            held = self.at[peer]
            held.pop(key, None)
            assert len(held) < self.live[peer]
            assert self.merging or not held or sum(held.values()) + size <= MAX_BYTES
            assert self.idempotent or not self.executed.get(key), "executed twice"
            held[key] = size
            self.told.get(peer, set()).discard(key)
            self.executed[key] = self.executed.get(key, 0) + 1
        for peer, statistics in self.in_flight.statistics().replicas.items():
            assert statistics["in_flight"] == len(self.at[peer])
            assert statistics["executed"] == len(self.told.get(peer, set()) & set(self.at[peer]))

    def _end(self, key: bytes) -> None:
        assert key not in self.ended, "ended twice"
        self.ended.add(key)
        del self.open[key]

    def _open(self, peer: str, window: int) -> None:
        self.live[peer] = FOREVER if self.merging else window
        self.at.setdefault(peer, {})
        self.closed.discard(peer)
        self.in_flight.open(peer, self.live[peer], now=self.now)

    def _grant(self, peer: str, window: int) -> None:
        if peer in self.live and not self.merging:
            self.live[peer] = window
            self.in_flight.grant(peer, window)

    def _close(self, peer: str, _: int) -> None:
        self.in_flight.close(peer)
        if peer in self.live:
            self.closed.add(peer)

    def _down(self, peer: str, _: int) -> None:
        held = self.at.pop(peer, {})
        self.live.pop(peer, None)
        self.told.pop(peer, None)
        self.closed.discard(peer)
        loss = self.in_flight.down(peer)
        for refusal in loss.refused:
            assert refusal.key in held
            assert (refusal.deaths == 0) == (not self.idempotent)
            self._end(refusal.key)
        for key in set(loss.ended):
            assert self.open[key][1] == peer
            self._end(key)

    def _put(self, target: str, size: int) -> None:
        key = self.num.to_bytes(16, "little")
        self.num += 1
        target = "" if self.merging else target
        self.open[key] = (size, target)
        self.in_flight.put(key, size, now=self.now, route=key, target=target or None)

    def _again(self, _: str, number: int) -> None:
        if self.open and self.idempotent:
            key = list(self.open)[number % len(self.open)]
            size, target = self.open[key]
            self.in_flight.put(key, size, now=self.now, route=key, target=target or None)

    def _released(self, peer: str, number: int) -> None:
        keys = list(self.at.get(peer, {}))[:number]
        for key in self.in_flight.released(peer, keys, now=self.now):
            self._end(key)
        for key in keys:
            del self.at[peer][key]
            self.told.get(peer, set()).discard(key)

    def _told(self, peer: str, number: int) -> None:
        keys = list(self.at.get(peer, {}))[:number]
        self.in_flight.executed(peer, keys, now=self.now)
        self.told.setdefault(peer, set()).update(keys)

    def _returned(self, peer: str, number: int) -> None:
        keys = list(self.at.get(peer, {}))[:number]
        self.in_flight.returned(peer, keys)
        for key in keys:
            del self.at[peer][key]
            self.told.get(peer, set()).discard(key)
            self.executed[key] -= 1

    def _started(self, peer: str, number: int) -> None:
        self.in_flight.started(peer, list(self.at.get(peer, {}))[:number])

    def _drop(self, _: str, number: int) -> None:
        if self.open:
            key = list(self.open)[number % len(self.open)]
            self.in_flight.drop(key)
            self._end(key)

    def _wait(self, _: str, milliseconds: int) -> None:
        self.now += milliseconds / 1000
        self.in_flight.check(now=self.now)

    def settle(self) -> None:
        """All replicas that are gone come again, all answer: then nothing may be left."""
        for peer in PEERS:
            self._open(peer, 6)
        for _ in range(self.num * 4 + 8):
            self.pump()
            for peer in PEERS:
                self._released(peer, 6)
        assert not self.open
        assert len(self.in_flight) == 0
        assert self.in_flight.num_waiting == 0
        assert self.in_flight.held_bytes == 0
        assert self.ended == {number.to_bytes(16, "little") for number in range(self.num)}
        assert all(statistics["in_flight"] == 0 for statistics in self.in_flight.statistics().replicas.values())


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATIONS, max_size=60), st.sampled_from(POLICIES), st.booleans(), st.booleans())
def test_each_item_ends_once_and_credit_returns_whatever_replicas_do(
    operations: list[tuple[str, str, int]], policy: str, idempotent: bool, merging: bool
) -> None:
    model = Model(policy, idempotent=idempotent, merging=merging)
    for operation in operations:
        model.do(*operation)
    model.settle()


@given(
    st.lists(st.tuples(st.sampled_from(("open", "close", "down")), st.sampled_from(PEERS)), max_size=12),
    st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=60),
)
def test_parts_of_one_request_meet_once_all_senders_know_the_same_replicas(
    changes: list[tuple[str, str]], order: list[tuple[int, bool]]
) -> None:
    senders = [InFlight(make_policy("shortest-queue", lambda n: 0), merging=True) for _ in range(2)]
    where: list[dict[bytes, str]] = [{}, {}]
    keys = [number.to_bytes(16, "little") for number in range(12)]
    to_change, to_send = [list(changes), list(changes)], [list(keys), list(keys)]

    def step(index: int, *, changes_first: bool) -> None:
        sender = senders[index]
        if to_change[index] and (changes_first or not to_send[index]):
            what, peer = to_change[index].pop(0)
            if what == "open":
                sender.open(peer, FOREVER, now=0.0)
            else:
                getattr(sender, what)(peer)
        elif to_send[index]:
            key = to_send[index].pop()
            sender.put(key, 1, now=0.0, route=key)
        for peer, key in sender.misplaced():
            sender.returned(peer, [key])
        for key, peer in sender.assign(now=0.0):
            where[index][key] = peer

    for index, changes_first in order:
        step(index, changes_first=changes_first)
    for index in (0, 1):
        to_change[index].append(("open", "r-9"))
        while to_change[index] or to_send[index]:
            step(index, changes_first=True)
    assert where[0] == where[1]
    assert set(where[0]) == set(keys)

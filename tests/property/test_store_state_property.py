"""The store against a model that remembers less cleverly, and its records against noise."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from multiworld.errors import ProtocolError
from multiworld.store.state import Reply, Request, Status, StoreState, pack_strings, unpack_strings

CLIENTS = st.sampled_from(["ann", "bob", "eve"])
KEYS = st.sampled_from([b"a", b"ab", b"b", b"c"])
VALUES = st.sampled_from([b"", b"1", b"2", b"-3"])


@dataclass
class Waiter:
    client: str
    seq: int
    keys: list[bytes]
    unless: tuple[bytes, bytes | None] | None
    then: bytes | None


class StoreMachine(RuleBasedStateMachine):
    """``self.values`` holds value and owner by key; a wait is looked at again after every change."""

    def __init__(self) -> None:
        super().__init__()
        self.state = StoreState()
        self.values: dict[bytes, tuple[bytes, str | None]] = {}
        self.waiters: list[Waiter] = []
        self.seq = 0

    def ask(self, client: str, request: Request, fields: list[bytes], *, lease: bool = False) -> list[Reply]:
        self.seq += 1
        return self.state.handle(client, self.seq, request, int(lease), fields)

    def value(self, key: bytes) -> bytes | None:
        return self.values[key][0] if key in self.values else None

    def expected(self, client: str, value: bytes | None) -> Reply:
        return Reply(client, self.seq, Status.ABSENT if value is None else Status.OK, [] if value is None else [value])

    def woken(self) -> list[Reply]:
        """Which waits end now, in the order in which they began, and then which end by what these change."""
        replies, following = self.ended()
        while following:
            key, expected, then = following.pop(0)
            if self.value(key) == expected:
                self.values[key] = (then, None)
                more, after = self.ended()
                replies += more
                following += after
        return replies

    def ended(self) -> tuple[list[Reply], list[tuple[bytes, bytes | None, bytes]]]:
        replies: list[Reply] = []
        following = []
        for waiter in list(self.waiters):
            values = [self.value(key) for key in waiter.keys]
            if None not in values:
                found = [value for value in values if value is not None]
                replies.append(Reply(waiter.client, waiter.seq, Status.OK, found))
                if waiter.unless is not None and waiter.then is not None:
                    following.append((*waiter.unless, waiter.then))
            elif waiter.unless is not None and self.value(waiter.unless[0]) != waiter.unless[1]:
                replies.append(Reply(waiter.client, waiter.seq, Status.ABSENT, []))
            else:
                continue
            self.waiters.remove(waiter)
        return replies, following

    @rule(client=CLIENTS, key=KEYS)
    def get(self, client: str, key: bytes) -> None:
        assert self.ask(client, Request.GET, [key]) == [self.expected(client, self.value(key))]

    @rule(client=CLIENTS, key=KEYS, value=VALUES, lease=st.booleans())
    def set(self, client: str, key: bytes, value: bytes, lease: bool) -> None:
        replies = self.ask(client, Request.SET, [key, value], lease=lease)
        self.values[key] = (value, client if lease else None)
        assert replies == [Reply(client, self.seq, Status.OK, []), *self.woken()]

    @rule(client=CLIENTS, key=KEYS, amount=st.integers(-5, 5))
    def add(self, client: str, key: bytes, amount: int) -> None:
        before = self.value(key)
        replies = self.ask(client, Request.ADD, [key, b"%d" % amount])
        if before == b"":
            assert [reply.status for reply in replies] == [Status.INVALID]
            return
        total = b"%d" % (int(before or b"0") + amount)
        self.values[key] = (total, None)
        assert replies == [Reply(client, self.seq, Status.OK, [total]), *self.woken()]

    @rule(
        client=CLIENTS,
        key=KEYS,
        desired=VALUES,
        expected=VALUES | st.none(),
        lease=st.booleans(),
        guard=st.none() | st.tuples(KEYS, VALUES),
    )
    def compare_set(
        self,
        client: str,
        key: bytes,
        desired: bytes,
        expected: bytes | None,
        lease: bool,
        guard: tuple[bytes, bytes] | None,
    ) -> None:
        fields = [key, desired, *([] if expected is None else [expected]), *(guard or ())]
        replies = self.ask(client, Request.COMPARE_SET, fields, lease=lease)
        if self.value(key) == expected and (guard is None or self.value(guard[0]) == guard[1]):
            self.values[key] = (desired, client if lease else None)
        assert replies == [self.expected(client, self.value(key)), *self.woken()]

    @rule(client=CLIENTS, keys=st.lists(KEYS, max_size=3))
    def delete(self, client: str, keys: list[bytes]) -> None:
        replies = self.ask(client, Request.DELETE, keys)
        for key in keys:
            self.values.pop(key, None)
        assert replies == [Reply(client, self.seq, Status.OK, []), *self.woken()]

    @rule(client=CLIENTS, prefix=st.sampled_from([b"", b"a", b"ab", b"x"]))
    def entries(self, client: str, prefix: bytes) -> None:
        (reply,) = self.ask(client, Request.LIST, [prefix])
        listed = dict(zip(reply.values[::2], reply.values[1::2], strict=True))
        assert listed == {key: value for key, (value, _) in self.values.items() if key.startswith(prefix)}

    @rule(
        client=CLIENTS,
        keys=st.lists(KEYS, max_size=3),
        unless=st.none() | st.tuples(KEYS, VALUES | st.none()),
        then=st.none() | VALUES,
    )
    def wait(
        self, client: str, keys: list[bytes], unless: tuple[bytes, bytes | None] | None, then: bytes | None
    ) -> None:
        fields = [b"%d" % len(keys), *keys]
        if unless is None or unless[1] is None:
            then = None
        if unless is not None:
            fields += [part for part in (*unless, then) if part is not None]
        replies = self.ask(client, Request.WAIT, fields)
        self.waiters.append(Waiter(client, self.seq, keys, unless, then))
        assert replies == self.woken()

    @rule(client=CLIENTS, index=st.integers(0, 100))
    def cancel(self, client: str, index: int) -> None:
        if not self.waiters:
            return
        waiter = self.waiters[index % len(self.waiters)]
        replies = self.ask(client, Request.CANCEL, [b"%d" % waiter.seq])
        assert replies == [Reply(client, self.seq, Status.OK, [])]
        if waiter.client == client:
            self.waiters.remove(waiter)

    @rule(client=CLIENTS)
    def disconnect(self, client: str) -> None:
        replies = self.state.disconnect(client)
        self.waiters = [waiter for waiter in self.waiters if waiter.client != client]
        self.values = {key: entry for key, entry in self.values.items() if entry[1] != client}
        assert replies == self.woken()

    @invariant()
    def nothing_is_kept_too_long(self) -> None:
        assert len(self.state) == len(self.values)
        assert self.state.num_waiters == len(self.waiters)
        owners = {owner for _, owner in self.values.values() if owner is not None}
        assert set(self.state._leases) == owners

    def teardown(self) -> None:
        for client in ("ann", "bob", "eve"):
            self.disconnect(client)
        assert not self.waiters


StoreMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestStore = StoreMachine.TestCase


@given(st.lists(st.binary(max_size=50)))
def test_strings_survive_packing(strings: list[bytes]) -> None:
    assert unpack_strings(pack_strings(strings)) == strings


@given(st.lists(st.binary(max_size=20)), st.integers(1, 100), st.binary(max_size=20))
def test_a_record_that_is_cut_or_longer_is_read_or_refused(strings: list[bytes], cut: int, more: bytes) -> None:
    data = pack_strings(strings)
    for noise in (data[:-cut], data + more, more):
        with contextlib.suppress(ProtocolError):
            assert pack_strings(unpack_strings(noise)) == noise


@given(st.integers(0, 20), st.integers(0, 3), st.lists(st.binary(max_size=10), max_size=6))
def test_any_request_is_answered(request_code: int, flags: int, fields: list[bytes]) -> None:
    state = StoreState()
    state.handle("other", 1, Request.SET, 1, [b"1", b"1"])
    replies = state.handle("ann", 7, request_code, flags, fields)
    assert all((reply.client, reply.seq) == ("ann", 7) for reply in replies)
    assert len(replies) == 1 - state.num_waiters

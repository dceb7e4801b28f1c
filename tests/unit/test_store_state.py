"""What a store answers: values, counters, comparisons, leases that end with their client, and waits."""

from __future__ import annotations

import pytest

from multiworld.errors import ProtocolError
from multiworld.store.state import Reply, Request, Status, StoreState, pack_strings, unpack_strings

OK, ABSENT, INVALID = Status.OK, Status.ABSENT, Status.INVALID


class Store:
    """A state with a request counter, so that tests can talk to it as clients do."""

    def __init__(self) -> None:
        self.state = StoreState()
        self.seq = 0

    def ask(self, client: str, request: int, *fields: bytes, lease: bool = False) -> list[Reply]:
        self.seq += 1
        return self.state.handle(client, self.seq, request, int(lease), list(fields))

    def answer(self, client: str, request: int, *fields: bytes, lease: bool = False) -> tuple[Status, list[bytes]]:
        reply = self.ask(client, request, *fields, lease=lease)[0]
        assert (reply.client, reply.seq) == (client, self.seq)
        return reply.status, reply.values

    def get(self, key: bytes) -> bytes | None:
        status, values = self.answer("reader", Request.GET, key)
        return values[0] if status is OK else None


@pytest.fixture
def store() -> Store:
    return Store()


def test_what_was_set_can_be_read_until_it_is_deleted(store: Store) -> None:
    assert store.answer("a", Request.GET, b"k") == (ABSENT, [])
    assert store.answer("a", Request.SET, b"k", b"v") == (OK, [])
    assert store.answer("b", Request.GET, b"k") == (OK, [b"v"])
    assert store.answer("b", Request.DELETE, b"k", b"unknown") == (OK, [])
    assert store.answer("a", Request.GET, b"k") == (ABSENT, [])
    assert len(store.state) == 0


def test_counters_start_at_zero_and_take_any_sign(store: Store) -> None:
    assert store.answer("a", Request.ADD, b"n", b"5") == (OK, [b"5"])
    assert store.answer("b", Request.ADD, b"n", b"-7") == (OK, [b"-2"])
    assert store.get(b"n") == b"-2"


def test_a_comparison_sets_only_what_is_as_expected_and_tells_what_is_there(store: Store) -> None:
    assert store.answer("a", Request.COMPARE_SET, b"k", b"1") == (OK, [b"1"])
    assert store.answer("b", Request.COMPARE_SET, b"k", b"2") == (OK, [b"1"])
    assert store.answer("b", Request.COMPARE_SET, b"k", b"2", b"0") == (OK, [b"1"])
    assert store.answer("b", Request.COMPARE_SET, b"k", b"2", b"1") == (OK, [b"2"])
    assert store.answer("b", Request.COMPARE_SET, b"other", b"2", b"1") == (ABSENT, [])
    assert store.get(b"other") is None


def test_a_prefix_lists_keys_with_their_values(store: Store) -> None:
    for key in (b"w/1/0", b"w/1/1", b"w/2/0", b"x"):
        store.ask("a", Request.SET, key, b"=" + key)
    status, values = store.answer("a", Request.LIST, b"w/1/")
    assert status is OK
    assert dict(zip(values[::2], values[1::2], strict=True)) == {b"w/1/0": b"=w/1/0", b"w/1/1": b"=w/1/1"}


def test_leased_keys_vanish_with_their_client_and_others_stay(store: Store) -> None:
    store.ask("a", Request.SET, b"leased", b"1", lease=True)
    store.ask("a", Request.COMPARE_SET, b"compared", b"1", lease=True)
    store.ask("a", Request.SET, b"kept", b"1")
    store.ask("b", Request.SET, b"others", b"1", lease=True)
    assert store.state.disconnect("a") == []
    assert [store.get(key) for key in (b"leased", b"compared", b"kept", b"others")] == [None, None, b"1", b"1"]
    assert store.state.disconnect("a") == []


def test_a_key_that_somebody_else_has_set_since_is_not_the_leaving_ones(store: Store) -> None:
    store.ask("a", Request.SET, b"k", b"1", lease=True)
    store.ask("b", Request.SET, b"k", b"2")
    store.state.disconnect("a")
    assert store.get(b"k") == b"2"
    store.ask("a", Request.SET, b"k", b"3", lease=True)
    store.ask("b", Request.SET, b"k", b"4", lease=True)
    store.state.disconnect("a")
    assert store.get(b"k") == b"4"
    store.state.disconnect("b")
    assert store.get(b"k") is None


def test_a_guard_must_hold_besides_the_comparison(store: Store) -> None:
    store.ask("a", Request.SET, b"g", b"1")
    assert store.answer("a", Request.COMPARE_SET, b"k", b"1", b"g", b"2") == (ABSENT, [])
    assert store.answer("a", Request.COMPARE_SET, b"k", b"1", b"absent", b"1") == (ABSENT, [])
    assert store.answer("a", Request.COMPARE_SET, b"k", b"1", b"g", b"1") == (OK, [b"1"])
    assert store.answer("a", Request.COMPARE_SET, b"k", b"2", b"1", b"g", b"2") == (OK, [b"1"])
    assert store.answer("a", Request.COMPARE_SET, b"k", b"2", b"1", b"g", b"1") == (OK, [b"2"])


def test_a_failed_comparison_leases_nothing(store: Store) -> None:
    store.ask("a", Request.SET, b"k", b"1")
    store.ask("b", Request.COMPARE_SET, b"k", b"2", lease=True)
    store.state.disconnect("b")
    assert store.get(b"k") == b"1"


def test_a_wait_ends_once_all_keys_are_there_at_the_same_time(store: Store) -> None:
    assert store.ask("w", Request.WAIT, b"2", b"x", b"y") == []
    waiting = store.seq
    assert len(store.ask("a", Request.SET, b"x", b"1", lease=True)) == 1
    store.state.disconnect("a")
    assert len(store.ask("b", Request.SET, b"y", b"2")) == 1, "x is gone again"
    replies = store.ask("b", Request.SET, b"x", b"3")
    assert replies[1:] == [Reply("w", waiting, OK, [b"3", b"2"])]
    assert store.state.num_waiters == 0


def test_a_wait_for_what_is_there_ends_at_once(store: Store) -> None:
    store.ask("a", Request.SET, b"x", b"1")
    assert store.answer("w", Request.WAIT, b"1", b"x") == (OK, [b"1"])
    assert store.answer("w", Request.WAIT, b"0") == (OK, [])


@pytest.mark.parametrize("expected", [[b"g"], [b"g", b"1"]])
def test_a_wait_is_given_up_when_another_key_changes(store: Store, expected: list[bytes]) -> None:
    if len(expected) > 1:
        store.ask("a", Request.SET, *expected)
    assert store.ask("w", Request.WAIT, b"1", b"x", *expected) == []
    waiting = store.seq
    assert store.ask("a", Request.SET, b"g", b"2")[1:] == [Reply("w", waiting, ABSENT, [])]
    assert store.answer("w", Request.WAIT, b"1", b"x", *expected) == (ABSENT, [])


def test_keys_that_are_all_there_count_more_than_a_change(store: Store) -> None:
    store.ask("a", Request.SET, b"x", b"1")
    store.ask("a", Request.SET, b"g", b"2")
    assert store.answer("w", Request.WAIT, b"1", b"x", b"g", b"1") == (OK, [b"1"])


def test_deleting_or_the_end_of_a_lease_may_give_up_waits(store: Store) -> None:
    store.ask("a", Request.SET, b"g", b"1", lease=True)
    store.ask("w", Request.WAIT, b"1", b"x", b"g", b"1")
    assert store.state.disconnect("a") == [Reply("w", store.seq, ABSENT, [])]


def test_what_follows_from_a_wait_is_seen_by_all_that_comes_later(store: Store) -> None:
    """All who wait for the same keys have them, though the first of them has changed what the others watch."""
    store.ask("a", Request.SET, b"g", b"1")
    waiting = []
    for client in ("v", "w"):
        store.ask(client, Request.WAIT, b"2", b"x", b"y", b"g", b"1", b"2")
        waiting.append(store.seq)
    store.ask("u", Request.WAIT, b"1", b"never", b"g", b"1", b"3")
    given_up = store.seq
    store.ask("a", Request.SET, b"x", b"0")
    assert store.get(b"g") == b"1"
    replies = store.ask("a", Request.SET, b"y", b"0")
    assert replies[1:] == [
        Reply("v", waiting[0], OK, [b"0", b"0"]),
        Reply("w", waiting[1], OK, [b"0", b"0"]),
        Reply("u", given_up, ABSENT, []),
    ]
    assert store.get(b"g") == b"2"
    assert store.state.num_waiters == 0


def test_nothing_follows_from_a_wait_whose_watched_key_has_changed(store: Store) -> None:
    store.ask("a", Request.SET, b"g", b"5")
    store.ask("a", Request.SET, b"x", b"0")
    assert store.answer("w", Request.WAIT, b"1", b"x", b"g", b"1", b"2") == (OK, [b"0"])
    assert store.get(b"g") == b"5"


def test_a_cancelled_wait_is_never_answered(store: Store) -> None:
    store.ask("w", Request.WAIT, b"1", b"x")
    waiting = store.seq
    store.ask("v", Request.WAIT, b"1", b"x")
    other = store.seq
    store.ask("w", Request.CANCEL, b"%d" % other)
    assert store.state.num_waiters == 2, "a client cancels its own waits only"
    store.ask("w", Request.CANCEL, b"%d" % waiting)
    replies = store.ask("a", Request.SET, b"x", b"1")
    assert [(reply.client, reply.seq) for reply in replies[1:]] == [("v", other)]


def test_the_waits_of_a_client_end_with_it(store: Store) -> None:
    store.ask("w", Request.WAIT, b"1", b"x")
    store.state.disconnect("w")
    assert store.state.num_waiters == 0
    assert len(store.ask("a", Request.SET, b"x", b"1")) == 1


@pytest.mark.parametrize(
    ("request_code", "fields"),
    [
        (0, []),
        (99, [b"x"]),
        (Request.GET, []),
        (Request.SET, [b"k"]),
        (Request.ADD, [b"k"]),
        (Request.ADD, [b"k", b"many"]),
        (Request.ADD, [b"k", b"\xff"]),
        (Request.ADD, [b"text", b"1"]),
        (Request.COMPARE_SET, [b"k"]),
        (Request.COMPARE_SET, [b"k"] * 6),
        (Request.LIST, []),
        (Request.WAIT, []),
        (Request.WAIT, [b"-1", b"k"]),
        (Request.WAIT, [b"3", b"k"]),
        (Request.WAIT, [b"x", b"k"]),
        (Request.WAIT, [b"1", b"k", b"g", b"1", b"2", b"3"]),
        (Request.CANCEL, []),
        (Request.CANCEL, [b"x"]),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_as_invalid_and_changes_nothing(
    store: Store, request_code: int, fields: list[bytes]
) -> None:
    store.ask("a", Request.SET, b"text", b"no number")
    status, values = store.answer("a", request_code, *fields)
    assert status is INVALID
    assert len(values) == 1
    assert len(store.state) == 1
    assert store.state.num_waiters == 0


@pytest.mark.parametrize("strings", [[], [b""], [b"", b""], [b"a", b"", b"bc" * 1000]])
def test_strings_survive_packing(strings: list[bytes]) -> None:
    assert unpack_strings(pack_strings(strings)) == strings


@pytest.mark.parametrize("data", [b"\x01", b"\x00\x00\x00", b"\x02\x00\x00\x00a", b"\xff\xff\xff\xff", b"\0\0\0\0\1"])
def test_records_that_do_not_add_up_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="store record"):
        unpack_strings(data)

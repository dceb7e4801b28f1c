"""Nodes at addresses: errors say which command starts one, and what is lost is claimed again."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from multiworld.errors import JoinRefusedError, MultiworldError, StoreError
from multiworld.remote import ConnectError
from multiworld.remote.connecting import claims
from multiworld.remote.connecting.addresses import urls_of
from multiworld.wire.progress.operation import Operation
from multiworld.world.manager import WorldManager

URL = "tcp://10.0.0.7:29500"


class Unreachable:
    """A manager that reaches no store. ``timeouts_s``: of the attempts."""

    def __init__(self, error: MultiworldError) -> None:
        self._error = error
        self.timeouts_s: list[float] = []

    def start_store_client(self, url: str, timeout_s: float) -> Operation[Any]:
        self.timeouts_s.append(timeout_s)
        operation: Operation[Any] = Operation()
        operation.fail(self._error)
        return operation


def reach(manager: Unreachable, timeout_s: float) -> str:
    with pytest.raises(ConnectError) as caught:
        claims._client(cast("WorldManager", manager), URL, timeout_s)
    return str(caught.value)


def test_the_error_names_the_command_that_starts_a_node() -> None:
    manager = Unreachable(StoreError(URL, "Connection refused"))
    assert reach(manager, 3) == (
        f"no node can be reached at {URL}: Connection refused. "
        "Start one there: multiworld nodes serve --host 10.0.0.7 --port 29500"
    )
    assert manager.timeouts_s == [3]


def test_a_long_wait_is_told(caplog: pytest.LogCaptureFixture) -> None:
    manager = Unreachable(StoreError(URL, "Connection refused"))
    with caplog.at_level(logging.WARNING):
        reach(manager, 60)
    assert manager.timeouts_s == [5, 55]
    assert f"no node answers at {URL} yet: Connection refused. It has 55 s more" in caplog.text


def test_a_refusal_ends_the_wait_at_once() -> None:
    manager = Unreachable(JoinRefusedError(URL, "the job tokens differ"))
    assert reach(manager, 60) == f"no node can be reached at {URL}: the job tokens differ"
    assert manager.timeouts_s == [5]


class Client:
    """A connection to the store of a node whose process drew ``number``. ``is_lost``: its answers do not come."""

    def __init__(self, number: bytes, holder: bytes | None = None) -> None:
        self._number, self._holder = number, holder
        self.is_lost = self.is_closed = False

    def wait(self, keys: list[str]) -> Operation[Any]:
        operation: Operation[Any] = Operation()
        if self.is_lost:
            operation.fail(StoreError(URL, "the connection is lost"))
        else:
            operation.succeed([self._number])
        return operation

    def compare_set(self, key: str, expected: bytes | None, value: bytes, *, lease: bool) -> Operation[Any]:
        operation: Operation[Any] = Operation()
        operation.succeed(self._holder or value)
        return operation

    def discard(self, keys: list[str]) -> None:
        assert not self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Reached:
    """A manager that reaches these stores, one after the other, and then none."""

    def __init__(self, *clients: Client) -> None:
        self._clients = list(clients)

    def start_store_client(self, url: str, timeout_s: float) -> Operation[Any]:
        operation: Operation[Any] = Operation()
        if self._clients:
            operation.succeed(self._clients.pop(0))
        else:
            operation.fail(StoreError(url, "Connection refused"))
        return operation


def claimed(*clients: Client) -> claims.Claims:
    held = claims.Claims(cast("WorldManager", Reached(*clients)))
    held.take(1, URL, 3)
    return held


def test_a_node_that_is_there_is_claimed_once() -> None:
    first = Client(b"71")
    held = claimed(first)
    held.renew(1)
    assert (held.drawn(1), first.is_closed) == (71, False)
    held.give_back()
    assert first.is_closed


def test_a_process_that_comes_in_place_of_another_is_claimed_with_its_number() -> None:
    first, second = Client(b"71"), Client(b"72")
    held = claimed(first, second)
    first.is_lost = True
    held.renew(1)
    assert (held.drawn(1), first.is_closed, second.is_closed) == (72, True, False)


@pytest.mark.parametrize("others", [[], [Client(b"72", holder=b"process 9 on b#1")]])
def test_a_node_that_is_not_there_yet_or_is_busy_is_tried_again(others: list[Client]) -> None:
    first = Client(b"71")
    held = claimed(first, *others)
    first.is_lost = True
    with pytest.raises(StoreError, match=r"no node can be reached|has a master already: process 9 on b\."):
        held.renew(1)
    assert all(each.is_closed for each in others)


def test_a_claim_that_comes_after_the_end_is_given_back() -> None:
    late = Client(b"71")
    held = claims.Claims(cast("WorldManager", Reached(late)))
    held.give_back()
    held.take(1, URL, 3)
    assert late.is_closed


def test_a_list_of_addresses_is_refused() -> None:
    with pytest.raises(TypeError, match=r'addresses is one string, as "tcp://a:29500,b:29500", got list'):
        urls_of([URL])  # type: ignore[arg-type]

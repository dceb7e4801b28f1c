"""A node that can't be reached: the error says why, and which command starts one."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from multiworld.errors import JoinRefusedError, MultiworldError, StoreError
from multiworld.remote import ConnectError
from multiworld.remote.connecting import addresses
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
        addresses._client(cast("WorldManager", manager), URL, timeout_s)
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


def test_a_list_of_addresses_is_refused() -> None:
    with pytest.raises(TypeError, match=r'addresses is one string, as "tcp://a:29500,b:29500", got list'):
        urls_of([URL])  # type: ignore[arg-type]

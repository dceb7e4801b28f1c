"""The controller's door while strangers stand before it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from multiworld.process.link import ControlLink
from multiworld.serving.control.client.client import ask
from multiworld.serving.control.client.questions import ControllerQuestion, MetricsTold, StatusOf
from multiworld.serving.control.reception import Reception
from multiworld.serving.hosts.host import Host
from multiworld.serving.hosts.messages import HOST_EVENTS, HOST_ORDERS, Hello
from multiworld.testing import scaled
from multiworld.wire.endpoints.admission import MAX_UNPROVEN

pytestmark = pytest.mark.usefixtures("no_leaks")


async def answer(question: ControllerQuestion) -> MetricsTold:
    return MetricsTold(gateways={"asked": type(question).__name__})


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    reception = Reception("secret", on_host=lambda _: None, on_request=answer)
    port = await reception.start()
    yield ("127.0.0.1", port)
    await reception.aclose()


def is_hung_up(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        return True
    return True


async def test_silent_strangers_lock_no_command_out(address: tuple[str, int]) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(address, scaled(5))) for _ in range(MAX_UNPROVEN + 20)]
        told = await asyncio.to_thread(ask, address, "secret", StatusOf(), MetricsTold, scaled(5))
        assert told == MetricsTold(gateways={"asked": "StatusOf"})
        for stranger in crowd[:20]:
            assert await asyncio.to_thread(is_hung_up, stranger)


@pytest.mark.parametrize(
    "words", [b"x" * 64 + b"\n", b"[" * 4000 + b"\n", b'{"multiworld": 1, "purpose": {}}\n', b"{}\n"]
)
async def test_what_strangers_say_is_logged_by_nobody(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture, words: bytes
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        with socket.create_connection(address, scaled(5)) as stranger:
            stranger.sendall(words)
            assert await asyncio.to_thread(is_hung_up, stranger)
    assert caplog.records == []


async def test_a_reception_closes_while_strangers_come() -> None:
    reception = Reception("secret", on_host=lambda _: None, on_request=answer)
    port = await reception.start()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), scaled(5)))
        await asyncio.sleep(0)  # some are accepted, and nobody has served them yet
        await reception.aclose()


def test_the_latest_connection_of_a_host_counts() -> None:
    """One that is older may come in late: it was on its way when the host gave it up."""
    came: list[Host] = []
    reception = Reception("secret", on_host=came.append, on_request=answer)
    hello = Hello(host="there", address="::1", pid=1, capacity=1, members={})
    first, second, third = (Host(hello, ControlLink(HOST_ORDERS, HOST_EVENTS), number) for number in (1, 2, 3))
    assert reception.let_in(second, 2) is None
    refused = reception.let_in(first, 1)
    assert refused is not None
    assert "older than another one" in refused.reason
    assert not second.is_lost
    assert reception.let_in(third, 3) is None
    assert second.is_lost
    assert came == [second, third]

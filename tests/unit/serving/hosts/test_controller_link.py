"""A host's connection to a controller that refuses it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from multiworld.process.link import ControlLink
from multiworld.serving.control.client.questions import Done
from multiworld.serving.control.reception import Reception
from multiworld.serving.hosts import controller_link
from multiworld.serving.hosts.controller_link import ControllerLink
from multiworld.serving.hosts.messages import HOST_EVENTS, HOST_ORDERS, Hello, HostEvent, HostOrder, Refused
from multiworld.testing import scaled
from multiworld.wire.endpoints.dialer import DialError
from multiworld.wire.endpoints.listener import Listener, Pending
from multiworld.wire.progress.thread import ProgressThread

TOKEN = "0123456789abcdef"
HELLO = Hello(host="here", address="127.0.0.1", pid=1, capacity=1, members={})
REASON = "there is a host 'here' already; use another --name"


class Controller:
    """Lets a host in as often as it is told to, each time until the hello; then it refuses, or is no more."""

    def __init__(self, lets_in: int, then_ends: bool) -> None:
        self.lets_in, self.then_ends = lets_in, then_ends
        self.num_refused = 0
        self._loop = ProgressThread("test-controller")
        self._listener = Listener(self._loop, "127.0.0.1", 0, TOKEN.encode(), {"host": self._admit})
        self.port = self._listener.port
        self._links: list[ControlLink[HostOrder, HostEvent]] = []

    def close(self) -> None:
        self._loop.call_soon(self._end)
        self._loop.stop()

    def _end(self) -> None:
        self._listener.close()
        for link in self._links:
            link.abort()

    def _admit(self, pending: Pending) -> None:
        link: ControlLink[HostOrder, HostEvent] = ControlLink(
            HOST_ORDERS, HOST_EVENTS, on_message=lambda event, _: self._greet(link, event)
        )
        self._links.append(link)
        pending.accept(link)

    def _greet(self, link: ControlLink[HostOrder, HostEvent], event: HostEvent) -> None:
        assert event == HELLO
        if self.lets_in:
            self.lets_in -= 1
            if self.then_ends:
                self._listener.close()
        else:
            self.num_refused += 1
            link.tell(Refused(reason=REASON))
        link.finish()


@contextmanager
def controller(*, lets_in: int, then_ends: bool = False) -> Iterator[Controller]:
    server = Controller(lets_in, then_ends)
    try:
        yield server
    finally:
        server.close()


def refusals_until(
    server: Controller, is_over: Callable[[], bool], beside: Callable[[ControllerLink], None]
) -> list[str]:
    """Dial until the host gives up or it is over; return what it gave up for. ``beside`` is called again and again."""
    refused: list[str] = []
    loop = ProgressThread("multiworld-host", starts=False)

    def give_up(reason: str) -> None:
        refused.append(reason)
        loop.stop()

    link = ControllerLink(
        loop,
        ("127.0.0.1", server.port),
        TOKEN,
        hello=lambda _: HELLO,
        on_order=lambda order, call: None,
        on_refused=give_up,
    )

    def look() -> None:
        if is_over():
            loop.stop()
        beside(link)
        loop.call_later(0.1, look)

    link.dial()
    look()
    loop.call_later(scaled(20), loop.stop)
    loop.run()
    link.close()
    loop.close()
    return refused


def dial_for(port: int, seconds: float, beside: Callable[[ControllerLink], None] = lambda _: None) -> None:
    loop = ProgressThread("multiworld-host", starts=False)
    link = ControllerLink(
        loop,
        ("127.0.0.1", port),
        TOKEN,
        hello=lambda _: HELLO,
        on_order=lambda order, call: None,
        on_refused=lambda _: None,
    )
    beside(link)
    link.dial()
    loop.call_later(seconds, loop.stop)
    loop.run()
    link.close()
    loop.close()


def test_a_controller_that_is_not_there_is_told_of_once(caplog: pytest.LogCaptureFixture, no_leaks: None) -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        dial_for(port, 0.5)
    reason = "Connection refused. It is looked for until it is there, or this host is stopped."
    assert caplog.messages == [f"there is no controller at 127.0.0.1:{port}: {reason}"]


def test_a_host_that_is_being_stopped_misses_no_controller(caplog: pytest.LogCaptureFixture, no_leaks: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dial_for(taken.getsockname()[1], 0.2, lambda link: setattr(link, "tells_absence", False))
    assert not caplog.messages


def test_a_controller_that_goes_is_told_of_when_it_has_been_away_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, no_leaks: None
) -> None:
    monkeypatch.setattr(controller_link, "MISSED_S", 0.2)
    with controller(lets_in=1, then_ends=True) as server:
        at = f"127.0.0.1:{server.port}"
        dial_for(server.port, 1.0)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"the controller at {at} is away: ")


def test_a_host_that_was_never_let_in_gives_up_with_the_reason(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    monkeypatch.setattr(controller_link, "REFUSED_S", 0.2)
    with controller(lets_in=0) as server:
        assert refusals_until(server, lambda: False, lambda _: None) == [REASON]
    assert server.num_refused > 1, "one of the same name may just be going"


def test_a_host_that_was_let_in_once_is_refused_for_ever_without_giving_up(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr(controller_link, "REFUSED_S", 0.0)
    with controller(lets_in=1) as server:
        assert refusals_until(server, lambda: server.num_refused >= 4, lambda _: None) == []
    assert server.num_refused >= 4


def test_refusals_that_something_else_came_between_are_not_counted_together(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    def lose(link: ControllerLink) -> None:
        link._down(DialError("127.0.0.1", 1, "nobody there"))  # as between each two

    monkeypatch.setattr(controller_link, "REFUSED_S", 0.3)
    with controller(lets_in=0) as server:
        assert refusals_until(server, lambda: server.num_refused >= 8, lose) == []
    assert server.num_refused >= 8


def test_a_host_with_another_token_gives_up_at_once_and_says_so(no_leaks: None) -> None:
    """There is no predecessor to wait for, as where another host has its name."""
    refused: list[str] = []
    loop = ProgressThread("multiworld-host", starts=False)

    def give_up(reason: str) -> None:
        refused.append(reason)
        loop.stop()

    async def answer(question: object) -> Done:
        return Done()

    async def serve(ports: list[int], ready: threading.Event, ended: threading.Event) -> None:
        reception = Reception("another token of the tests", on_host=lambda _: None, on_request=answer)
        ports.append(await reception.start())
        ready.set()
        await asyncio.to_thread(ended.wait)
        await reception.aclose()

    ports, ready, ended = list[int](), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(ports, ready, ended)))
    thread.start()
    try:
        assert ready.wait(scaled(5))
        link = ControllerLink(
            loop,
            ("127.0.0.1", ports[0]),
            TOKEN,
            hello=lambda _: HELLO,
            on_order=lambda order, call: None,
            on_refused=give_up,
        )
        link.dial()
        loop.call_later(scaled(5), loop.stop)
        loop.run()
        link.close()
        loop.close()
    finally:
        ended.set()
        thread.join()
    assert refused == ["the job tokens differ; give all processes of the job the same token= or MULTIWORLD_TOKEN"]

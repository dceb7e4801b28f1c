"""A host's connection to a controller that refuses it."""

from __future__ import annotations

import asyncio
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from multiworld.serving.hosts import Reception, controller_link
from multiworld.serving.hosts.controller_link import ControllerLink
from multiworld.serving.hosts.greeting import AcceptorGreeting
from multiworld.serving.hosts.spoken_lines import SpokenLines
from multiworld.testing import scaled
from multiworld.wire.progress import ProgressThread
from multiworld.wire.records import ACCEPTOR

TOKEN = "0123456789abcdef"
REASON = "there is a host 'here' already; use another --name"


class Controller(socketserver.ThreadingTCPServer):
    """Lets a host in as often as it is told to, each time until the hello; then it refuses, or is no more."""

    daemon_threads = True

    def __init__(self, lets_in: int, then_ends: bool) -> None:
        super().__init__(("127.0.0.1", 0), Visit)
        self.lets_in, self.then_ends = lets_in, then_ends
        self.num_refused = 0


class Visit(socketserver.StreamRequestHandler):
    server: Controller

    def handle(self) -> None:
        self._lines = SpokenLines()
        greeting = AcceptorGreeting(TOKEN, self._next(), os.urandom(16))
        self.wfile.write(self._lines.say(greeting.challenge))
        self.wfile.write(self._lines.say(greeting.accept(self._next())))
        self._lines.authenticate(greeting.key, ACCEPTOR)
        assert self._next() == {"event": "hello"}
        if self.server.lets_in:
            self.server.lets_in -= 1
            if self.server.then_ends:
                self.server.socket.close()
        else:
            self.server.num_refused += 1
            self.wfile.write(self._lines.say({"refused": REASON}))

    def _next(self) -> Any:
        while (record := self._lines.next()) is None:
            chunk = self.request.recv(65536)
            if not chunk:
                raise ConnectionError("the host is gone")
            self._lines.feed(chunk)
        return record


@contextmanager
def controller(*, lets_in: int, then_ends: bool = False) -> Iterator[Controller]:
    with Controller(lets_in, then_ends) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


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
        ("127.0.0.1", server.server_address[1]),
        TOKEN,
        hello=lambda _: {"event": "hello"},
        on_order=lambda _: None,
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
        hello=lambda _: {"event": "hello"},
        on_order=lambda _: None,
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
        at = f"127.0.0.1:{server.server_address[1]}"
        dial_for(server.server_address[1], 1.0)
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
        link._lose(OSError("nobody there"))  # as between each two

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

    async def answer(request: object) -> dict[str, object]:
        return {}

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
            hello=lambda _: {"event": "hello"},
            on_order=lambda _: None,
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

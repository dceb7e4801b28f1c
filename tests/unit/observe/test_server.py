"""The page's server: what strangers send it, and how many of them there are, troubles nobody else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from multiworld.elastic.page.site import serve_job
from multiworld.elastic.page.snapshot import Snapshot
from multiworld.observe import server as server_module
from multiworld.observe.server import PageServer
from multiworld.observe.snapshots import Snapshots
from multiworld.testing import wait_until
from multiworld.wire.endpoints.admission import MAX_IN_RESERVE
from multiworld.wire.progress.thread import ProgressThread
from tests.unit.elastic.control.test_questions import job_status, three

LOCAL, WAIT_S = "127.0.0.1", 10.0


def take() -> Snapshot:
    return Snapshot(status=job_status(three()), events=(), last_number=0, counts={})


@pytest.fixture
def page() -> Iterator[PageServer]:
    loop = ProgressThread("test-page")
    page = serve_job(LOCAL, 0, token="secret", snapshots=Snapshots(loop, take), read_lines=lambda agent, rank, last: [])
    try:
        yield page
    finally:
        page.close()
        page.join(WAIT_S)
        loop.stop()


def answer_to(page: PageServer, request: bytes) -> bytes:
    with socket.create_connection((LOCAL, page.port), WAIT_S) as sock:
        sock.sendall(request)
        answer = b""
        with suppress(ConnectionResetError):  # one that is sent away at once was not read
            while part := sock.recv(65536):
                answer += part
    return answer


def test_an_address_that_means_nothing_is_a_bad_request(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    defects: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", defects.append)
    assert answer_to(page, b"GET http://[ HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 400 ")
    assert answer_to(page, b"GET /status HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")
    assert not defects


@pytest.mark.parametrize("path", ["/healthz", "/", "/status", "/metrics", "/events"])
@pytest.mark.parametrize("head", ["Host: rebound.example.org", "Host: localhost\r\nOrigin: http://other.example.org"])
def test_pages_of_other_sites_learn_nothing(page: PageServer, path: str, head: str) -> None:
    assert answer_to(page, f"GET {path} HTTP/1.0\r\n{head}\r\n\r\n".encode()).startswith(b"HTTP/1.0 403 ")


@pytest.mark.parametrize("more", ["X-Forwarded-For: 10.0.0.7", "Via: 1.1 proxy\r\nAuthorization: Bearer "])
def test_a_reader_behind_a_proxy_is_not_this_hosts(page: PageServer, more: str) -> None:
    head = f"HTTP/1.0\r\nHost: localhost:8000\r\n{more}\r\n\r\n"
    assert b" 401 " in answer_to(page, f"GET /status {head}".encode()).splitlines()[0]
    assert b" 200 " in answer_to(page, f"GET /healthz {head}".encode()).splitlines()[0], "probes come through proxies"


def test_whoever_asks_for_nothing_keeps_nobody_out(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 4)
    with ExitStack() as idle:
        for _ in range(6):
            idle.enter_context(socket.create_connection((LOCAL, page.port), WAIT_S))
        assert wait_until(lambda: len(page._connections) == 4, WAIT_S)
        assert answer_to(page, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")


def test_readers_of_events_are_not_sent_away_for_others(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    with socket.create_connection((LOCAL, page.port), WAIT_S) as reader:
        reader.sendall(b"GET /events HTTP/1.0\r\n\r\n")
        told = reader.recv(65536)
        assert told.startswith(b"HTTP/1.0 200 ")
        assert answer_to(page, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 503 ")
        while b"data:" not in told:
            told += reader.recv(65536)


def test_a_page_outlives_a_want_of_threads(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(page, "_start", start)
        assert answer_to(page, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 503 ")
    assert answer_to(page, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")


def test_only_a_few_strangers_stand_at_a_page_in_the_reserve_of_descriptors(
    page: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as idle:
        for _ in range(20):
            idle.enter_context(socket.create_connection((LOCAL, page.port), WAIT_S))
        assert wait_until(lambda: len(page._connections) == 20, WAIT_S)
        monkeypatch.setattr(server_module, "is_reserved", lambda descriptor: True)
        assert answer_to(page, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")
        assert wait_until(lambda: len(page._connections) <= MAX_IN_RESERVE, WAIT_S)


def test_there_is_nothing_to_show_once_it_is_closed() -> None:
    loop = ProgressThread("test-page")
    try:
        closing: list[Snapshots[Snapshot]] = []

        def take_late() -> Snapshot:
            loop.call_soon(closing[0].close)
            return take()

        snapshots = Snapshots(loop, take_late)
        closing.append(snapshots)
        snapshots.latest()
        assert wait_until(lambda: snapshots.latest() is None, WAIT_S)
    finally:
        loop.stop()

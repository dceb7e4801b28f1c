"""The page over HTTP: its addresses, its stream, many and slow readers, the token; and in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from multiworld.elastic.control.client import ControlError
from multiworld.elastic.job.ending import Ending
from multiworld.elastic.job.history import Event, History
from multiworld.elastic.job.status import AgentStatus
from multiworld.elastic.job.trainings import Trainings
from multiworld.elastic.leadership.coordinator import Coordinator
from multiworld.elastic.page.site import serve_job
from multiworld.elastic.page.snapshot import Failure, Snapshot
from multiworld.elastic.page.source import PageSource
from multiworld.observe import server as server_module
from multiworld.observe import snapshots as snapshots_module
from multiworld.observe.server import PageServer
from multiworld.observe.snapshots import Snapshots
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.launcher.pipelines import LOST_RANK, PipelineRanks
from tests.unit.elastic.control.test_questions import job_status, three
from tests.unit.elastic.job.test_job import Hosts, agent, failure, hosts
from tests.unit.elastic.job.test_trainings import pipelines, trained

pytestmark = pytest.mark.usefixtures("no_leaks")

TIMEOUT_S = 10


class Shown:
    """A job that a page shows; its parts may be changed."""

    def __init__(self, loop: ProgressThread, some: Hosts) -> None:
        self.job, self.happened, self.is_over = some, 0, False
        self.num_taken = 0
        self.failures: tuple[Failure, ...] = ()
        self.text = "happening {}"
        self.trainings = Trainings()
        self.snapshots = Snapshots(loop, self.take)

    def take(self) -> Snapshot | None:
        self.num_taken += 1
        if self.is_over:
            return None
        events = tuple(
            Event(number=number, at=1.0, kind="restart", text=self.text.format(number), generation=1, term=1)
            for number in range(1, self.happened + 1)
        )
        status = job_status(self.job)
        workers = tuple(replace(each, pid=None if each.rank is None else 7000 + each.rank) for each in status.workers)
        return Snapshot(
            status=replace(status, workers=workers, trainings=self.trainings.status()),
            events=events,
            last_number=self.happened,
            counts={"restart": self.happened},
            began_at=1000.0,
            failures=self.failures,
            curves=self.trainings.curves(),
        )

    def happen(self) -> None:
        self.happened += 1
        self.snapshots.changed()


def lines_of(agent: AgentStatus, rank: int, last: int) -> list[str]:
    if agent.hostname == "b":
        raise ControlError("it does not answer")
    return [f"rank {rank} serves at http://127.0.0.1:8000"]


@contextmanager
def page_of(some: Hosts, *, host: str = "127.0.0.1", token: str = "") -> Iterator[tuple[PageServer, Shown]]:
    loop = ProgressThread("test-agent")
    shown = Shown(loop, some)
    server = serve_job(host, 0, token=token, snapshots=shown.snapshots, read_lines=lines_of)
    try:
        yield server, shown
    finally:
        server.close()
        server.join(TIMEOUT_S)
        loop.stop()


def get(server: PageServer, path: str, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@contextmanager
def stream(server: PageServer, **headers: str) -> Iterator[HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/events", headers=headers)
        with connection.getresponse() as response:
            assert response.getheader("Content-Type") == "text/event-stream"
            yield response
    finally:
        connection.close()


def message(response: HTTPResponse) -> dict[str, Any]:
    """Read one server-sent event."""
    fields: dict[str, Any] = {}
    while (line := response.readline().decode()) not in ("\n", ""):
        name, _, value = line.rstrip("\n").partition(": ")
        fields[name] = json.loads(value) if name == "data" else value
    return fields


def test_what_the_page_answers() -> None:
    with page_of(three()) as (server, _):
        assert get(server, "/healthz") == (200, "ok\n")
        code, body = get(server, "/status")
        assert (code, json.loads(body)["job"]) == (200, "job7")
        code, body = get(server, "/metrics")
        assert code == 200
        assert 'multiworld_agents{state="active"} 2' in body
        code, body = get(server, "/")
        assert code == 200
        assert body.startswith("<!doctype html>")
        assert get(server, "/etc/passwd")[0] == 404
        assert get(server, "/status", Host="rebound.example.org")[0] == 403


def test_the_last_lines_of_a_rank_come_from_its_agent() -> None:
    with page_of(three()) as (server, _):
        code, body = get(server, "/logs?rank=1")
        assert (code, json.loads(body)["lines"]) == (200, ["rank 1 serves at http://127.0.0.1:8000"])
        code, body = get(server, "/logs?rank=2")
        assert (code, "the agent on b did not tell the lines: it does not answer" in body) == (503, True)
        for rank in ("", "4", "x", "-1", "None"):
            assert get(server, f"/logs?rank={rank}")[0] == 404


def test_many_readers_cost_the_agent_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "MAX_AGE_S", 60.0)
    with page_of(three()) as (server, shown):
        for _ in range(5):
            assert get(server, "/status")[0] == 200
        assert shown.num_taken == 1


def test_the_stream_tells_what_happens_as_it_happens() -> None:
    with page_of(three()) as (server, shown):
        shown.happen()
        with stream(server) as response:
            first, second = message(response), message(response)
            assert (first["event"], first["data"]["job"]) == ("status", "job7")
            assert (second["event"], second["id"]) == ("events", "1")
            shown.happen()
            third = message(response)
            assert (third["id"], [each["text"] for each in third["data"]]) == ("2", ["happening 2"])
        with stream(server, **{"Last-Event-ID": "1"}) as response:
            message(response)
            assert [each["text"] for each in message(response)["data"]] == ["happening 2"]
        with stream(server, **{"Last-Event-ID": "77"}) as response:  # those were of another job
            message(response)
            assert len(message(response)["data"]) == 2


def test_the_stream_ends_with_the_coordinators_part() -> None:
    with page_of(three()) as (server, shown), stream(server) as response:
        message(response)
        shown.is_over = True
        shown.snapshots.changed()
        assert response.read() == b""
        assert get(server, "/status")[0] == 503


def test_failures_stay_on_the_page_when_the_job_has_forgotten_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it ends, the job keeps only those that are why: who looks then wants all."""
    monkeypatch.setattr(snapshots_module, "MAX_AGE_S", 0.0)
    some, loop = three(), ProgressThread("test-agent")
    ending = Ending()
    events = SimpleNamespace(watchers=[], history=History(), num_recorded=0)
    coordinator = SimpleNamespace(
        term=1, job=SimpleNamespace(ending=ending), events=events, trainings=Trainings(), record=lambda *_, **__: None
    )
    keeper = PageSource(
        loop, ("127.0.0.1", 0), token="", host="here", status=lambda: job_status(some), read_lines=lines_of
    )
    failed = Event(number=1, at=1.0, kind="worker failed", text="rank 1 failed", generation=1, term=1)
    try:
        keeper.leads(cast("Coordinator", coordinator))
        for number in range(30):
            ending.note(failure(1, at_us=number * 1_000_000), float(number))
            events.watchers[0](failed)
        ending.interrupt(signal.SIGTERM)
        html = urllib.request.urlopen(keeper.url or "", timeout=TIMEOUT_S).read().decode()
        ending.note(failure(2, at_us=30_000_000), 30.0)  # of one that was to end: no event tells of it
        later = urllib.request.urlopen(keeper.url or "", timeout=TIMEOUT_S).read().decode()
    finally:
        keeper.close()
        keeper.join(TIMEOUT_S)
        loop.stop()
    shown = [json.loads(each.partition('id="first">')[2].partition("</script>")[0]) for each in (html, later)]
    assert [each["at"] for each in shown[0]["failures"]] == list(range(10, 30))
    assert [each["at"] for each in shown[1]["failures"]] == list(range(11, 31))


def test_an_open_page_needs_the_token() -> None:
    with page_of(three(), host="0.0.0.0", token="secret") as (server, _):
        assert get(server, "/")[0] == 401
        assert get(server, "/metrics", Authorization="Bearer other")[0] == 401
        assert get(server, "/metrics", Authorization="Bearer secret")[0] == 200
        assert get(server, "/?token=secret", Host="login.example.org")[0] == 200
        assert get(server, "/healthz")[0] == 200


def test_readers_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server_module._Handler, "timeout", 0.2)
    with page_of(three()) as (server, _), ExitStack() as idle:
        silent = [idle.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(3)]
        assert get(server, "/status")[0] == 200
        for sock in silent:
            sock.settimeout(TIMEOUT_S)
            assert sock.recv(1) == b"", "it was too slow"
        assert get(server, "/status")[0] == 200


def test_closing_ends_the_streams_of_readers_at_once() -> None:
    with page_of(three()) as (server, _), stream(server) as response:
        message(response)
        server.close()
        assert response.read() == b""


# ---- in a browser


def browse(server: PageServer, folder: Path, *options: str) -> str:
    """Return the page's document as a browser has made it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium is installed")
    command = [
        chromium,
        "--headless",
        "--no-sandbox",  # root has none, and it only looks at our own page
        "--disable-gpu",
        "--timeout=2000",
        f"--user-data-dir={folder}",
        *options,
        "--dump-dom",
        f"http://127.0.0.1:{server.port}/",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    return shown.stdout


def text_of(html: str, element: str) -> str:
    """Return what an element shows, without its tags."""
    inner = re.search(rf'<(\w+)[^>]* id="{element}"[^>]*>(.*?)</\1>', html, re.DOTALL)
    assert inner is not None, html
    return re.sub(r"<[^>]+>", " ", inner[2])


def test_a_browser_shows_the_job(tmp_path: Path) -> None:
    some = three()
    some.fail(1)
    host, _ = some.running[some.at(2)]
    some.job.worker_in_world(host, some.at(2), "<b>a world</b>")
    with page_of(some) as (server, shown):
        shown.happen()
        html = browse(server, tmp_path)
    assert text_of(html, "name") == "job7"
    assert text_of(html, "phase") == "running"
    agents = text_of(html, "agents").split()
    assert [word for word in agents if word in ("a", "b", "waits")] == ["a", "b", "waits"]
    assert "↻1" in agents
    assert "&lt;b&gt;a world&lt;/b&gt;" in html.partition('id="worlds"')[2]
    assert "happening 1" in text_of(html, "events")


def test_a_browser_shows_a_hundred_agents(tmp_path: Path) -> None:
    many = hosts(1, 100, greets=True)
    for number in range(100):
        many.attach(replace(agent(f"node{number}", num_workers=8), port=number + 1))
    while (due := many.job.next_deadline()) is not None and due <= many.now:
        many.pass_time(0.0)  # places are given out in turns
    with page_of(many) as (server, _):
        html = browse(server, tmp_path)
    assert text_of(html, "agents").count("active") == 100
    assert html.count('class="chip running"') >= 800


def test_a_browser_shows_why_a_rank_failed_and_since_when_the_job_runs(tmp_path: Path) -> None:
    some = three()
    some.fail(1)
    with page_of(some) as (server, shown):
        shown.failures = (
            Failure(
                rank=1,
                hostname="a",
                pid=77,
                at=time.time(),
                text="ValueError: no such shard",
                traceback='File "train.py", line 3\nValueError: no such shard',
                last_lines=(),
            ),
        )
        html = browse(server, tmp_path)
    assert "<title>job7 · multiworld</title>" in html
    assert "since" in text_of(html, "about")
    assert "✕ Rank 1 on a failed" in text_of(html, "banner")
    assert "line 3\nValueError: no such shard</pre>" in html.partition('id="failures"')[2]
    assert "pid 77" in html.partition('id="failures"')[2]
    assert re.search(r'<button[^>]*aria-label="rank 1 on a: running[^"]*restarts left"', html)


def test_a_browser_can_follow_the_addresses_in_events(tmp_path: Path) -> None:
    with page_of(three()) as (server, shown):
        shown.text = "the page of this job: http://127.0.0.1:8000/page is elsewhere now"
        shown.happen()
        html = browse(server, tmp_path)
    assert '<a href="http://127.0.0.1:8000/page" rel="noreferrer">' in html.partition('id="events"')[2]
    assert 'href="status"' in html
    assert 'href="metrics"' in html


def test_a_browser_shows_which_ranks_have_which_layers(tmp_path: Path) -> None:
    with page_of(three()) as (server, shown):
        for news in (pipelines(), trained(4)):
            shown.trainings.take(news, at=1000.0)
        html = browse(server, tmp_path)
    drawn = html.partition('class="pipelines"')[2].partition("</svg>")[0]
    assert "<title>rank 0: layers 0–3, 10 % bubbles</title>" in drawn
    assert "<title>rank 3: layers 0–7</title>" in drawn
    assert "9 micro-batches" in drawn
    assert "pipeline 1: ranks 3" in html


def test_a_browser_shows_who_computes_for_a_lost_rank(tmp_path: Path) -> None:
    first = PipelineRanks(ranks=(0, 1), starts=(0, 4), num_micro_batches=5, busy=(0.5, 0.9), computed=(5, 8))
    broken = PipelineRanks(ranks=(2, LOST_RANK), starts=(0, 4), num_micro_batches=3, busy=(0.3, 0.0), computed=(3, 0))
    with page_of(three()) as (server, shown):
        for news in (replace(pipelines(), pipelines=(first, broken)), trained(4)):
            shown.trainings.take(news, at=1000.0)
        html = browse(server, tmp_path)
    drawn = html.partition('class="pipelines"')[2].partition("</svg>")[0]
    assert "<title>rank 1, 8 micro-batches: layers 4–7, 10 % bubbles</title>" in drawn
    assert "<title>others (lost): layers 4–7</title>" in drawn
    assert "pipeline 1: ranks 2, (lost)" in html

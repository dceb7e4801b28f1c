"""The page of a deployment over HTTP, and in a real browser: what it shows, how soon, and what it survives."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld.errors import MultiworldError
from multiworld.serving import DeploymentError, Pipeline, Stage, StageFailedError
from multiworld.serving.control.client.questions import ControllerQuestion, EventsSince, EventsTold, StatusTold
from multiworld.serving.control.history import EventRecord
from multiworld.serving.control.reception import Reception
from multiworld.serving.control.status import ControllerStatus
from multiworld.serving.page import ControllerSource, DeploymentSource, Recorder, serve_page
from multiworld.testing import scaled
from multiworld.wire.messages import from_json, to_json
from tests.process.browser import TIMEOUT_S, browser
from tests.unit.serving.page.test_page import event, failing, status_of

pytestmark = pytest.mark.usefixtures("no_leaks")

SEEN_S = scaled(2.0)


class FakeSource:
    """A controller that says what it is told to; ``why``: it cannot be reached."""

    def __init__(self) -> None:
        self.now = status_of(replicas={"embed": 1, "left": 2, "right": 2, "join": 1})
        self.happened: list[dict[str, Any]] = []
        self.why = ""

    def happen(self, kind: str, **fields: Any) -> None:
        self.happened.append(event(kind, number=len(self.happened) + 1, at=time.time(), **fields))
        self.now["num_events"] = len(self.happened)

    async def status(self) -> ControllerStatus:
        if self.why:
            raise MultiworldError(self.why)
        return from_json(ControllerStatus, self.now)

    async def events(self, since: int) -> list[EventRecord]:
        return [from_json(EventRecord, each) for each in self.happened[since:]]

    async def lines(self, member: str, last: int) -> list[str]:
        return [f"[{member}] <line> {number}" for number in range(2)]

    def close(self) -> None:
        """It holds nothing."""


# ---- without a browser


async def get(url: str, path: str = "", head: str = "", most: int = -1) -> tuple[int, str]:
    """Return status, and head and body, of an answer that ends its connection."""
    host, port = url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET /page{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}\r\n".encode())
        text = (await asyncio.wait_for(reader.read(most), TIMEOUT_S)).decode()
    finally:
        writer.close()
        await writer.wait_closed()
    return int(text.split()[1]), text


async def test_what_the_page_answers() -> None:
    source = FakeSource()
    source.happen("ReplicaLost", member="left-1", stage="left", why="it died")
    async with serve_page(source) as url:
        code, text = await get(url)
        assert code == 200
        assert "script-src 'sha256-" in text
        assert "<!doctype html>" in text
        code, text = await get(url, "/data")
        data = json.loads(text.partition("\r\n\r\n")[2])
        assert code == 200
        assert [each["id"] for each in data["snapshot"]["replicas"] if each["stage"] == "left"] == ["left-1", "left-2"]
        assert [each["text"] for each in data["events"]] == ["left-1 is lost: it died"]
        assert (await get(url, "/other"))[0] == 404


async def test_streams_end_with_the_page() -> None:
    async with serve_page(FakeSource()) as url:
        host, port = url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /page/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"event: snapshot"), TIMEOUT_S)
    assert b"event: series" in await asyncio.wait_for(reader.read(), TIMEOUT_S)
    writer.close()
    await writer.wait_closed()


async def test_an_open_page_needs_the_token() -> None:
    async with serve_page(FakeSource(), host="0.0.0.0", token="secret") as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert (await get(url))[0] == 401
        assert (await get(url, "?token=secret"))[0] == 200
        assert (await get(url, "/data", "Authorization: Bearer secret\r\n"))[0] == 200
    async with serve_page(FakeSource(), host="0.0.0.0") as url:
        assert (await get(url.replace("0.0.0.0", "127.0.0.1"), "?token="))[0] == 403


async def test_a_controller_elsewhere_is_asked_over_one_connection_and_found_again() -> None:
    told = FakeSource()
    num_asked = 0

    async def answer(question: ControllerQuestion) -> StatusTold | EventsTold:
        nonlocal num_asked
        num_asked += 1
        if isinstance(question, EventsSince):
            return EventsTold(events=tuple(await told.events(question.since)))
        return StatusTold(status=await told.status())

    def controller() -> Reception:
        return Reception("secret", on_host=lambda _: None, on_request=answer)

    first, second = controller(), controller()
    port = await first.start()
    with pytest.raises(DeploymentError, match="tokens differ"):
        await ControllerSource(("127.0.0.1", port), "other").status()
    source = ControllerSource(("127.0.0.1", port), "secret")
    try:
        told.happen("HostLost", host="far")
        assert (await source.status()).name == "some"
        assert [each.fields["host"] for each in await source.events(0)] == ["far"]
        await first.aclose()
        with pytest.raises(DeploymentError):
            await source.status()
        with pytest.raises(DeploymentError, match="no controller can be reached"):
            await source.status()
        await second.start(("127.0.0.1", port))
        assert (await source.status()).num_events == 1
        told.why = "it is confused"
        with pytest.raises(DeploymentError, match="it is confused"):
            await source.status()
    finally:
        source.close()
        await first.aclose()
        await second.aclose()
    assert num_asked == 4


# ---- in a browser


async def test_a_browser_comes_again_when_the_page_is_served_again(tmp_path: Path) -> None:
    source = FakeSource()
    async with browser(tmp_path) as driven:
        async with serve_page(source) as url:
            await driven.open(url)
            await driven.until("at('link').textContent === 'live'")
            assert await driven.find("document.querySelectorAll('#graph .member').length") == 6
            assert await driven.find("document.querySelectorAll('#graph .world.open').length") == 10
            assert "connected" in await driven.find("at('hosts').textContent")
            source.why = "nobody listens"
            await driven.until("at('banner').textContent.includes('nobody listens')", SEEN_S)
            assert await driven.find("at('main').className") == "lost"
            source.why = ""
            await driven.until("at('banner').textContent === 'Every stage takes requests.'", SEEN_S)
            source.now["ready"], source.now["missing"] = False, "stage 'join' has no replica that takes <requests>"
            await driven.until("at('banner').textContent.includes('takes <requests>')", SEEN_S)
        await driven.until("at('link').textContent.startsWith('not connected')", SEEN_S)
        assert await driven.find("at('main').className + ' ' + at('banner').className") == "lost lost"
        assert await driven.find("at('phase').className") == "pill"
        port = int(re.findall(r":(\d+)/", url)[0])
        source.now["name"] = "another"
        async with serve_page(source, port=port):
            await driven.until("at('name').textContent === 'another' && at('link').textContent === 'live'")
        # A connection that is refused is all that there may be to complain about.
        assert [each for each in driven.complaints if "ERR_CONNECTION_REFUSED" not in each] == []


async def test_the_page_fits_a_narrow_screen(tmp_path: Path) -> None:
    async with serve_page(FakeSource()) as url, browser(tmp_path) as driven:
        await driven.open(url, width=400)
        await driven.until("at('link').textContent === 'live'")
        assert await driven.find("document.documentElement.scrollWidth") <= 400
        box = "document.querySelector('#graph svg').getBoundingClientRect()"
        assert await driven.find(f"{box}.height > {box}.width")
        await driven.resize(1200, 900)
        await driven.until(f"{box}.width > {box}.height")
        assert await driven.find("document.documentElement.scrollWidth") <= 1200


async def test_failing_requests_turn_banner_and_stage_amber_and_then_red(tmp_path: Path) -> None:
    source = FakeSource()

    def failed(number: int, answered: int, calls: int) -> None:
        source.now = failing(source.now, answered=answered, failed=number)
        (replica,) = (each for each in source.now["replicas"] if each["id"] == "right-1")
        replica["stats"]["calls"] = calls

    failed(0, 1000, 100)
    async with serve_page(source) as url, browser(tmp_path) as driven:
        await driven.open(url)
        await driven.until("at('link').textContent === 'live'")
        assert await driven.find("at('failure').hidden")
        failed(2, 1098, 110)
        await driven.until("at('banner').className === 'warn' && at('banner').textContent.includes('(2.0 %)')")
        assert await driven.find("document.querySelectorAll('#graph .stage.warn').length") == 1
        assert "right-1 (2 times): ValueError: <bad> row" in await driven.find("at('failure').textContent")
        assert await driven.find("at('failure').querySelector('pre').textContent") == "T"
        assert await driven.find("document.title") == "◆ some · multiworld"
        assert "% failed" in await driven.find("document.querySelector('[data-id=right] .note').textContent")
        column = "[...document.querySelectorAll('th')].findLast(each => each.textContent === 'Batch').cellIndex"
        batch = f"document.querySelector('[data-id=right-1] td').parentElement.cells[{column}].textContent"
        assert await driven.find(batch) == "10.0", "requests in a call"
        failed(60, 1098, 110)
        await driven.until("at('banner').className === 'bad' && document.querySelector('#graph .stage.bad')")
        assert driven.complaints == []


async def test_a_stage_of_many_replicas_is_folded_and_events_stay_on_the_first_screen(tmp_path: Path) -> None:
    source = FakeSource()
    source.now = status_of({"embed": ["gateway"], "many": ["embed"]}, replicas={"embed": 2, "many": 40})
    source.now["replicas"][30]["state"] = "draining"
    for number in range(20):
        source.happen("ReplicaLost", member=f"many-{number + 41}", stage="many", why="it died")
    async with serve_page(source) as url, browser(tmp_path) as driven:
        await driven.open(url, width=1280, height=800)
        await driven.until("at('link').textContent === 'live'")
        assert await driven.find("document.querySelectorAll('#graph .chip').length") == 40
        assert await driven.find("document.querySelector('#graph .chip').dataset.id") == "many-29"
        assert await driven.find("document.querySelectorAll('#graph .world').length") == 5
        assert await driven.find("document.querySelector('#graph svg').getBoundingClientRect().height") < 400
        for width, height in ((1280, 800), (390, 844)):
            await driven.resize(width, height)
            await driven.until(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
            assert await driven.find("at('events').getBoundingClientRect().top") < height - 150
        assert driven.complaints == []


async def test_a_click_on_an_event_leads_to_its_replica_whose_id_can_be_copied(tmp_path: Path) -> None:
    source = FakeSource()
    source.now = failing(source.now, answered=1000, failed=0)
    source.happen("ReplicaReady", member="right-1", stage="right", took_s=1.0, version=1)
    async with serve_page(source) as url, browser(tmp_path) as driven:
        await driven.tell("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        await driven.open(url)
        await driven.until("at('link').textContent === 'live'")
        source.now = failing(source.now, answered=1090, failed=10)
        await driven.until("at('banner').className === 'bad'")
        await driven.find("document.querySelector('#events button').click()")
        assert await driven.find("at('detail').querySelector('h2').textContent") == "right-1"
        assert await driven.find("document.querySelector('#graph .picked').dataset.id") == "right-1"
        assert "ValueError: <bad> row" in await driven.find("at('detail').querySelector('h3').textContent")
        await driven.until("at('lines').textContent === '[right-1] <line> 0\\n[right-1] <line> 1'")
        await driven.find("document.querySelector('#detail .copy').click()")
        await driven.until("document.querySelector('#detail .copy').textContent === 'copied'")
        pasted = await driven.tell("Runtime.evaluate", expression="navigator.clipboard.readText()", awaitPromise=True)
        assert pasted["result"]["value"] == "right-1"
        source.now["replicas"] = [each for each in source.now["replicas"] if each["id"] != "right-1"]
        await driven.until("at('detail').querySelector('h2').textContent === 'right-1 is gone'")
        await driven.find("document.querySelector('#detail .close').click()")
        assert await driven.find("at('detail').hidden")
        assert driven.complaints == []


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def halve(x: torch.Tensor) -> torch.Tensor:
    if x[0] < 0:
        raise ValueError("no negative rows")
    return x / 2


async def test_an_error_of_a_stage_reaches_the_page_with_its_traceback() -> None:
    pipeline = Pipeline([Stage("first", add), Stage("second", halve)], name="two")
    async with pipeline.deploy() as deployment, Recorder(DeploymentSource(deployment)) as recorder:
        await deployment.infer(torch.zeros(2))

        async def until(holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            async def wait() -> dict[str, Any]:
                while recorder.shown is None or not holds(to_json(recorder.shown)):
                    await recorder.wait(recorder.version, TIMEOUT_S)
                return to_json(recorder.shown)

            return await asyncio.wait_for(wait(), TIMEOUT_S)

        await until(lambda shown: any(each["done"] for each in shown["replicas"] if each["stage"] == "second"))
        for _ in range(3):
            with pytest.raises(StageFailedError):
                await deployment.infer(torch.full((2,), -5.0))
        shown = await until(lambda shown: bool(shown["failure"] and shown["failure"]["traceback"]))
        assert shown["trouble"]["tone"] == "bad"
        failure = shown["failure"]
        assert (failure["member"], failure["count"]) == ("second-1", 3)
        assert failure["error"].startswith("ValueError: no negative rows")
        assert 'raise ValueError("no negative rows")' in failure["traceback"]
        assert any("ValueError: no negative rows" in line for line in await recorder.lines("second-1"))
        assert await recorder.lines("third-1") == []


async def test_a_browser_shows_a_killed_replica_and_its_replacement(tmp_path: Path) -> None:
    pipeline = Pipeline([Stage("first", add), Stage("second", add, replicas=2)], name="two")
    async with (
        browser(tmp_path) as driven,
        pipeline.deploy() as deployment,
        serve_page(DeploymentSource(deployment)) as url,
    ):
        await deployment.infer(torch.zeros(2))
        await driven.open(url)
        await driven.until("document.querySelectorAll('#graph .member.good').length === 3")
        victim = next(each for each in deployment.replicas if each["stage"] == "second")
        os.kill(victim["pid"], signal.SIGKILL)
        lost = f"at('events').textContent.includes('{victim['id']} is lost')"
        gone = f"!document.querySelector('#graph [data-id={victim['id']}]')"
        await driven.until(f"{lost} && {gone}", SEEN_S)
        await driven.until("document.querySelector('#graph [data-id=second-3].good')")
        assert "for second-1" in await driven.find("document.querySelector('[data-id=second-3]').textContent")
        assert driven.complaints == []

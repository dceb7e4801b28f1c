"""Both live pages for people who use no mouse or no eyes, or who have a small screen: keys, names, contrast, width."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from multiworld.elastic.page.snapshot import Failure
from multiworld.serving.page import serve_page
from tests.process.browser import Browser, browser
from tests.process.test_page import page_of
from tests.process.test_serving_page import FakeSource
from tests.unit.elastic.control.test_questions import three
from tests.unit.serving.page.test_page import failing, status_of
from tests.unit.training.view.runs import Run
from tests.unit.training.view.test_teller import told

pytestmark = pytest.mark.usefixtures("no_leaks")

LONG = "s3://bucket/" + "no/space/to/break/at/" * 8 + "shard-0000012345.tar"
FOCUSED = "document.activeElement"
ERROR = f"FileNotFoundError: {LONG}"
TRACEBACK = f'Traceback (most recent call last):\n  File "/srv/{LONG}", line 3, in main\n{ERROR}'
WIDTH, HEIGHT = 390, 844


@contextmanager
def job_page() -> Iterator[str]:
    """Serve the page of a job in which rank 1 has failed, with a long error."""
    some = three()
    some.fail(1)
    with page_of(some) as (server, shown):
        failure = Failure(rank=1, hostname="a", pid=77, at=time.time(), text=ERROR, traceback=TRACEBACK, last_lines=())
        shown.failures = (failure,)
        shown.text = f"rank {{}} opens {LONG}"
        for news in told(
            Run(num_members=3, total=200).steps(40).lose(1, cause=f"Lost{LONG}").steps(30).join(1).steps(30)
        ):
            shown.trainings.take(news, at=time.time())
        shown.happen()
        yield f"http://127.0.0.1:{server.port}/"


@asynccontextmanager
async def deployment_page() -> AsyncIterator[str]:
    """Serve the page of a deployment in which the replica right-1 fails 2 % of the requests, with a long error."""
    source = FakeSource()
    source.now = failing(status_of(replicas={"embed": 1, "left": 2, "right": 2, "join": 8}), answered=1000, failed=0)
    source.happen("ReplicaReady", member="right-1", stage="right", took_s=1.0, version=1)
    source.happen("LoadFailed", member="left-9", stage="left", error=ERROR, traceback=TRACEBACK)
    async with serve_page(source) as url:
        source.now = failing(source.now, answered=1098, failed=2)
        for member in (*source.now["replicas"], *source.now["gateways"]):
            if "failure" in member:
                member["failure"] |= {"error": ERROR, "traceback": TRACEBACK}
        yield url


async def tab_to(driven: Browser, condition: str) -> None:
    """Press Tab until that holds of what has the focus."""
    for _ in range(80):
        await driven.press("Tab")
        if await driven.find(f"Boolean({condition})"):
            return
    raise AssertionError(f"Tab does not lead to where {condition}")


async def headings(driven: Browser) -> list[str]:
    return [each.lower() for each in await driven.named("heading")]


async def test_the_launchers_page_is_used_by_keyboard(tmp_path: Path) -> None:
    with job_page() as url:
        async with browser(tmp_path) as driven:
            await driven.open(url)
            await driven.until("at('link').textContent === 'live'")
            await tab_to(driven, f"{FOCUSED}.matches('#failures summary')")
            await driven.press("Enter")
            assert await driven.find("document.querySelector('#failures details').open")
            await tab_to(driven, f"{FOCUSED}.dataset.rank === '0'")
            await driven.press("ArrowRight")
            await driven.press("Enter")
            await driven.until("at('who').textContent === 'Rank 1' && !at('detail').hidden")
            assert await driven.find(f"{FOCUSED}.id") == "detail"
            await tab_to(driven, f"{FOCUSED}.matches('#detail .close')")
            await driven.press("Enter")
            assert await driven.find("at('detail').hidden")
            assert await driven.find(f"{FOCUSED}.dataset.rank") == "1"
            await driven.press("Enter")
            await driven.press("Escape")
            assert await driven.find(f"at('detail').hidden && {FOCUSED}.dataset.rank") == "1"
            assert driven.complaints == []


async def test_servings_page_is_used_by_keyboard(tmp_path: Path) -> None:
    async with deployment_page() as url, browser(tmp_path) as driven:
        await driven.open(url)
        await driven.until("at('link').textContent === 'live'")
        for where, member in (
            ("dataset.id === 'right-2'", "right-2"),  # a box of the graph
            ("matches('#events .who')", "left-9"),
            ("matches('#gateways button')", "gateway-1"),
            ("matches('[data-id=join-3] button')", "join-3"),
        ):
            await tab_to(driven, f"{FOCUSED}.{where}")
            await driven.press("Enter")
            await driven.until(f"at('who').textContent.startsWith('{member}') && {FOCUSED}.id === 'detail'")
            await driven.press("Escape")
            assert await driven.find(f"at('detail').hidden && {FOCUSED}.{where}"), where
        assert driven.complaints == []


async def test_everything_that_can_be_chosen_has_a_name_for_screen_readers(tmp_path: Path) -> None:
    async with deployment_page() as url, browser(tmp_path / "serving") as driven:
        await driven.open(url)
        await driven.until("at('banner').className === 'warn'")
        buttons = await driven.named("button")
        assert all(buttons)
        assert sum("right-1: ready, process 101 on a" in each for each in buttons) == 1
        assert {"stages", "gateways", "hosts", "replicas"} <= set(await driven.named("region"))
        assert await driven.named("list") == ["events, the newest first"]
        assert all(await driven.named("checkbox"))
        assert all(await driven.named("image"))
        assert [each for each in await driven.named("columnheader") if each][:3] == ["Stage", "Open", "Bounds"]
        assert await headings(driven) == [
            *("some", "graph", "the last five minutes", "what happened", "stages", "gateways", "hosts", "replicas"),
        ]
    with job_page() as url:
        async with browser(tmp_path / "job") as driven:
            await driven.open(url)
            await driven.until("at('link').textContent === 'live'")
            buttons = await driven.named("button")
            assert all(buttons)
            assert sum(each.startswith("rank 1 on a: running") for each in buttons) == 1
            assert sorted(await driven.named("list")) == [
                "events, the newest first",
                "what happened to the members of gpt, the newest first",
            ]
            assert await driven.named("image") == ["loss of gpt over its steps, with 2 changes of its members"]
            parts = await headings(driven)
            parts.remove("gpt step 101 of 200, generation 3, 5 s left")
            assert parts == ["job7", "training", "failures", "agents and workers", "worlds", "events"]
            assert len(await driven.named("status")) == 2, "the banner and the connection are read out"


async def test_text_has_contrast_in_light_and_dark_connected_and_not(tmp_path: Path) -> None:
    async with browser(tmp_path / "serving") as driven:
        async with deployment_page() as url:
            await driven.open(url)
            await driven.until("at('banner').className === 'warn'")
            await driven.find("choose('right-1')")
            await driven.until("!at('trouble').hidden")
            for dark in (False, True):
                await driven.is_dark(dark)
                assert await driven.faint() == []
        await driven.until("at('banner').className === 'lost'")
        for dark in (False, True):
            await driven.is_dark(dark)
            assert await driven.faint() == []
    async with browser(tmp_path / "job") as driven:
        with job_page() as url:
            await driven.open(url)
            await driven.until("at('link').textContent === 'live'")
            await driven.find("choose(1)")
            for dark in (False, True):
                await driven.is_dark(dark)
                assert await driven.faint() == []
        await driven.until("at('main').className === 'lost'")
        assert await driven.faint() == []


async def test_nothing_is_wider_than_a_narrow_screen_with_long_errors(tmp_path: Path) -> None:
    fits = f"document.documentElement.scrollWidth <= {WIDTH}"
    async with deployment_page() as url, browser(tmp_path / "serving") as driven:
        await driven.open(url, width=WIDTH, height=HEIGHT)
        await driven.until("at('banner').className === 'warn'")
        assert await driven.find("at('events').getBoundingClientRect().top") < HEIGHT - 100
        await driven.find("choose('right-1')")
        await driven.until("!at('trouble').hidden && at('lines').textContent !== '…'")
        await driven.find("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        assert await driven.find(fits)
    with job_page() as url:
        async with browser(tmp_path / "job") as driven:
            await driven.open(url, width=WIDTH, height=HEIGHT)
            await driven.until("at('link').textContent === 'live'")
            await driven.find("choose(1)")
            await driven.until("!at('trouble').hidden && at('lines').textContent !== '…'")
            await driven.find("document.querySelectorAll('details').forEach(each => { each.open = true; })")
            assert await driven.find(fits)
            assert await driven.find("at('trouble').querySelector('pre').textContent") == TRACEBACK

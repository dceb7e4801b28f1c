"""The launcher's page in a browser that is used: by mouse and keyboard, at 390 px, and once the job has gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.process.browser import browser
from tests.process.test_page import page_of
from tests.unit.elastic.control.test_questions import three
from tests.unit.elastic.job.test_job import agent, hosts

pytestmark = pytest.mark.usefixtures("no_leaks")

RANK = "document.querySelector('#agents [data-rank=\"{}\"]')"
SHOWN = "at('who').textContent === 'Rank {}' && !at('detail').hidden"
KEY = "document.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"


async def test_a_rank_shows_its_process_and_its_last_lines(tmp_path: Path) -> None:
    with page_of(three()) as (server, _):
        async with browser(tmp_path) as driven:
            await driven.open(f"http://127.0.0.1:{server.port}/")
            await driven.until("at('link').textContent === 'live'")
            await driven.find(RANK.format(1) + ".click()")
            await driven.until(SHOWN.format(1))
            await driven.until("at('lines').textContent === 'rank 1 serves at http://127.0.0.1:8000'")
            assert await driven.find("at('lines').querySelector('a').href") == "http://127.0.0.1:8000/"
            assert "Restarts left" in await driven.find("at('facts').innerText")
            shown = await driven.find("[...at('facts').children].map(each => each.innerText.split('\\n'))")
            assert {("Pid", "7001"), ("Restarts left", "3")} <= set(map(tuple, shown))
            assert await driven.find(RANK.format(1) + ".getAttribute('aria-expanded')") == "true"
            await driven.find(RANK.format(2) + ".click()")
            await driven.until("at('lines').textContent.includes('it does not answer')")
            # That answer is a 503, which the browser tells of; nothing else is wrong with the page.
            assert [each for each in driven.complaints if "503" not in each] == []


async def test_ranks_can_be_chosen_by_keyboard_and_keep_the_focus_while_the_page_changes(tmp_path: Path) -> None:
    with page_of(three()) as (server, shown):
        async with browser(tmp_path) as driven:
            await driven.open(f"http://127.0.0.1:{server.port}/")
            await driven.until("at('link').textContent === 'live'")
            await driven.find(RANK.format(0) + ".focus()")
            await driven.find(KEY.format("ArrowRight"))
            assert await driven.find("document.activeElement.dataset.rank") == "1"
            shown.job.fail(2)
            shown.happen()
            await driven.until(RANK.format(2) + ".textContent.includes('↻1')")
            assert await driven.find("document.activeElement.dataset.rank") == "1"
            await driven.find("document.activeElement.click()")
            await driven.until(SHOWN.format(1))
            await driven.find(KEY.format("Escape"))
            assert await driven.find("at('detail').hidden")
            assert await driven.find("document.activeElement.dataset.rank") == "1"


async def test_ranks_are_readable_at_390_pixels(tmp_path: Path) -> None:
    many = hosts(1, 2, greets=True)
    for number in range(2):
        many.attach(replace(agent(f"node{number}", num_workers=16), port=number + 1, devices="8 x NVIDIA H100 80GB"))
    with page_of(many) as (server, _):
        async with browser(tmp_path) as driven:
            await driven.open(f"http://127.0.0.1:{server.port}/", width=390, height=844)
            await driven.until("at('link').textContent === 'live'")
            assert await driven.find("document.documentElement.scrollWidth") <= 390
            boxes = "[...document.querySelectorAll('#agents .chip')].map(each => each.getBoundingClientRect())"
            assert await driven.find(f"{boxes}.length") == 32
            assert await driven.find(f"{boxes}.every(each => each.left >= 0 && each.right <= 390 && each.height >= 24)")


async def test_the_page_says_that_what_it_shows_is_old(tmp_path: Path) -> None:
    with page_of(three()) as (server, _):
        async with browser(tmp_path) as driven:
            await driven.open(f"http://127.0.0.1:{server.port}/")
            await driven.until("at('link').textContent === 'live'")
            server.close()
            await driven.until("at('banner').className === 'lost'")
            assert await driven.find("at('link').textContent") == "not connected"

"""What a member shows: all of it off the training's thread, and nothing of it can end the training."""

from __future__ import annotations

import io
import os
import pty
import threading
from pathlib import Path

import pytest

from multiworld.training.events import MemberLost
from multiworld.training.view.folder import read_record
from multiworld.training.view.view import View
from multiworld.world.launcher.news import News, Trained, TrainingFault

from .runs import Run
from .test_lines import step

FAULT = MemberLost(job="gpt", member="m1", rank=0, generation=1, at=6.0, lost_rank=1, step=4, cause="A", detail="")


def test_a_run_is_recorded_shown_and_told(tmp_path: Path) -> None:
    told: list[News] = []
    run, stream = Run().steps(20).lose(2).steps(5).end(), io.StringIO()
    view = View(rank=0, member="m001", record=str(tmp_path), stream=stream, tell=told.append)
    for event in run.events["m001"]:
        view.take(event)
    view.close()

    assert list(read_record(tmp_path).events) == run.events["m001"]
    assert "gpt: lost rank 2 in step 20: PeerDiedError" in stream.getvalue()
    assert "step 26/60" in stream.getvalue()
    assert [type(each) for each in told if not isinstance(each, Trained)] == [TrainingFault] * 2
    assert isinstance(told[-1], Trained)
    assert told[-1].ended


def test_a_fault_is_written_at_once(tmp_path: Path) -> None:
    view = View(rank=0, member="m1", record=str(tmp_path), batch_s=3600.0)
    view.take(step())
    view.take(FAULT)
    while not (tmp_path / "00000-m1.jsonl").stat().st_size:
        os.sched_yield()

    assert read_record(tmp_path).events == (step(), FAULT)
    view.close()


def test_on_a_terminal_the_line_is_written_in_place() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        view = View(rank=0, member="m001", stream=stream)
        for event in Run().steps(3).end().events["m001"]:
            view.take(event)
        view.close()
        text = os.read(ours, 10_000).decode()
    os.close(ours)

    assert text.startswith("\rgpt  step 1/60")
    assert "\rgpt  step 3/60" in text
    assert text.endswith("\n")


def test_a_terminal_that_is_gone_and_a_launcher_that_fails_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.StringIO()
    stream.close()

    def tell(news: News) -> None:
        raise RuntimeError("no launcher")

    view = View(rank=0, member="m001", record=str(tmp_path), stream=stream, tell=tell)
    run = Run().steps(3)
    for event in run.events["m001"]:
        view.take(event)
    view.close()

    assert list(read_record(tmp_path).events) == run.events["m001"]
    assert "cannot be shown" in caplog.text


def test_nothing_is_left_after_closing_twice(tmp_path: Path) -> None:
    threads, descriptors = threading.active_count(), set(os.listdir("/proc/self/fd"))
    view = View(rank=0, member="m1", record=str(tmp_path))
    view.take(step())
    view.close()
    view.close()

    assert (threading.active_count(), set(os.listdir("/proc/self/fd"))) == (threads, descriptors)


def test_a_view_that_shows_nothing_has_no_thread() -> None:
    threads = threading.active_count()
    view = View(rank=0, member="m1")
    view.take(step())

    assert threading.active_count() == threads
    view.close()

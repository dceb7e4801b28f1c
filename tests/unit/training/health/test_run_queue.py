"""How long a thread waited for a processor."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from multiworld.process.facts import open_descriptors
from multiworld.training.health.run_queue import SCHEDSTAT, RunQueue


def test_what_the_kernel_says_is_read_anew_with_each_call(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("99 1500000000 7\n")
    queue = RunQueue(str(path))
    assert queue() == pytest.approx(1.5)
    path.write_text("199 2500000000 9\n")
    assert queue() == pytest.approx(2.5)
    queue.close()


def test_where_the_kernel_says_nothing_nobody_waits(tmp_path: Path) -> None:
    assert RunQueue(str(tmp_path / "no such file"))() == 0.0
    path = tmp_path / "schedstat"
    path.write_text("")
    assert RunQueue(str(path))() == 0.0


@pytest.mark.skipif(not os.path.exists(SCHEDSTAT), reason="this kernel does not say how long threads wait")
def test_time_stands_still_once_the_thread_has_ended() -> None:
    made: list[RunQueue] = []
    thread = threading.Thread(target=lambda: made.append(RunQueue()))
    thread.start()
    thread.join()
    (queue,) = made
    assert queue() == queue()
    queue.close()


def test_it_leaves_nothing_open() -> None:
    before = open_descriptors()
    queue = RunQueue()
    queue.close()
    queue.close()
    assert open_descriptors() == before
    assert queue() == queue()

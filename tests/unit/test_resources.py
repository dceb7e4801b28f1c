"""The leak check sees threads, descriptors and children, and the timeouts scale."""

from __future__ import annotations

import asyncio
import mmap
import os
import subprocess
import sys
import threading

import pytest

from multiworld.testing import (
    Deadline,
    LeakError,
    check_returned,
    check_returned_async,
    measure,
    scaled,
    trim,
    wait_until,
)
from multiworld.testing.deadlines import SCALE_VARIABLE


def test_nothing_left_is_no_leak() -> None:
    before = measure()
    assert check_returned(before).resident_bytes > 0


def test_a_thread_is_named() -> None:
    before, end = measure(), threading.Event()
    thread = threading.Thread(target=end.wait, name="the leak")
    thread.start()
    try:
        with pytest.raises(LeakError, match="the leak"):
            check_returned(before, timeout_s=0.05)
    finally:
        end.set()
        thread.join()


def test_a_descriptor_is_named() -> None:
    before = measure()
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(LeakError, match="/dev/null"):
            check_returned(before, timeout_s=0.05)
    finally:
        os.close(fd)


def test_a_child_is_seen_and_one_that_ends_in_time_is_no_leak() -> None:
    before = measure()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, pytest.raises(LeakError, match="children"):
        check_returned(before, timeout_s=0.05)
    check_returned(before)


async def test_shared_memory_is_named_and_may_be_given_back_while_the_loop_runs() -> None:
    before = measure()
    fd = os.memfd_create("leaked")
    os.truncate(fd, 4096)
    shared = mmap.mmap(fd, 4096)
    os.close(fd)
    with pytest.raises(LeakError, match=r"shared memory .*memfd:leaked"):
        await check_returned_async(before, timeout_s=0.05)
    asyncio.get_running_loop().call_later(0.03, shared.close)
    await check_returned_async(before)


def test_what_is_free_is_given_back_to_the_system() -> None:
    blocks = [bytearray(100_000) for _ in range(500)]
    held = measure().resident_bytes
    del blocks
    trim()
    assert measure().resident_bytes < held


def test_one_variable_scales_all_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCALE_VARIABLE, "2.5")
    assert scaled(2) == 5
    assert Deadline(2).timeout_s == 5
    monkeypatch.setenv(SCALE_VARIABLE, "fast")
    with pytest.raises(ValueError, match="fast"):
        scaled(1)


def test_waiting_for_a_condition_ends_at_the_deadline() -> None:
    assert wait_until(lambda: True, timeout_s=0)
    assert not wait_until(lambda: False, timeout_s=0.02)

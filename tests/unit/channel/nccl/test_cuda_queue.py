"""The threads of one device: questions are repeated until they are over, and everything ends when it is told to."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from multiworld.channel.nccl.cuda_queue import MAX_SLEEP_S, MIN_SLEEP_S, CudaQueue, Poller, acquire_queue, release_queue

WAIT_S = 10.0


def test_a_question_is_repeated_until_it_is_over_and_never_after() -> None:
    asked: list[int] = []
    over = threading.Event()

    def check() -> bool:
        asked.append(len(asked))
        if len(asked) == 5:
            over.set()
        return len(asked) == 5

    poller = Poller("test")
    poller.watch(check)
    assert over.wait(WAIT_S)
    second = threading.Event()
    poller.watch(lambda: second.set() or True)  # type: ignore[func-returns-value]
    assert second.wait(WAIT_S)
    assert len(asked) == 5
    poller.stop()
    assert poller.join(WAIT_S)


def test_sleeps_grow_while_nothing_ends_and_begin_anew_when_something_does() -> None:
    sleeps: list[float] = []
    done = threading.Event()

    def check() -> bool:
        return len(sleeps) >= 12

    poller = Poller("test", sleep=sleeps.append)

    def last() -> bool:
        if len(sleeps) >= 15:
            done.set()
        return done.is_set()

    poller.watch(check)
    poller.watch(last)
    assert done.wait(WAIT_S)
    poller.stop()
    assert poller.join(WAIT_S)
    assert sleeps[0] == MIN_SLEEP_S
    assert max(sleeps[:12]) == MAX_SLEEP_S
    assert sleeps[12] < MAX_SLEEP_S


def test_a_defect_in_one_question_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    poller = Poller("test")
    other = threading.Event()
    asked: list[int] = []

    def broken() -> bool:
        asked.append(1)
        raise ValueError("a defect")

    poller.watch(broken)
    poller.watch(lambda: bool(asked) and (other.set() or True))  # type: ignore[func-returns-value]
    assert other.wait(WAIT_S)
    poller.stop()
    assert poller.join(WAIT_S)
    assert asked == [1]
    assert "a defect" in caplog.text


def test_stopping_ends_the_thread_whatever_is_under_way() -> None:
    poller = Poller("test")
    asked = threading.Event()

    def never() -> bool:
        asked.set()
        return False

    poller.watch(never)
    assert asked.wait(WAIT_S)
    poller.stop()
    poller.stop()
    assert poller.join(WAIT_S)
    poller.watch(never)  # dropped
    assert poller.join(0.0)


def test_no_thread_starts_before_there_is_something_to_do() -> None:
    before = threading.active_count()
    queue = CudaQueue("test")
    assert threading.active_count() == before
    queue.stop()
    assert queue.join(0.0)


def test_launches_run_in_order_on_one_thread() -> None:
    queue = CudaQueue("test")
    ran: list[tuple[int, str]] = []

    def run(number: int) -> None:
        ran.append((number, threading.current_thread().name))

    for number in range(5):
        assert queue.launch(partial(run, number))
    queue.stop()
    assert queue.join(WAIT_S)
    assert ran == [(number, "test-launch") for number in range(5)]
    assert not queue.launch(lambda: None)


def test_a_device_has_one_queue_until_all_have_released_it() -> None:
    device, other = torch.device("cuda", 0), torch.device("cuda", 1)
    queue = acquire_queue(device)
    assert acquire_queue(device) is queue
    assert acquire_queue(other) is not queue
    release_queue(other)
    release_queue(device)
    assert queue.launch(lambda: None)
    release_queue(device)
    assert not queue.launch(lambda: None)
    assert queue.join(WAIT_S)
    fresh = acquire_queue(device)
    assert fresh is not queue
    release_queue(device)

"""What is chained to futures of a group runs one after the other, unless it waits for another of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from multiworld.testing import scaled
from multiworld.world.process_group.futures import Completer, GroupFuture

WAIT_S = 10.0


class Later:
    """Calls that are made when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def make(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def completer(later: Later) -> Completer:
    return Completer("test-futures", later)


def future_of(completer: Completer) -> GroupFuture:
    future = GroupFuture()
    future.completer = completer
    return future


def wait_for(event: threading.Event) -> None:
    assert event.wait(scaled(WAIT_S))


def test_calls_are_made_in_their_order_and_one_at_a_time(completer: Completer) -> None:
    made: list[int] = []
    running, over = threading.Lock(), threading.Event()

    def make(number: int) -> None:
        assert running.acquire(blocking=False)
        made.append(number)
        running.release()

    for number in range(100):
        completer.run(lambda number=number: make(number))  # type: ignore[misc]
    completer.run(over.set)
    wait_for(over)
    assert made == list(range(100))
    completer.stop()


@pytest.mark.parametrize("depth", [1, 5])
def test_a_call_may_wait_for_a_future_that_stands_behind_it(completer: Completer, depth: int) -> None:
    futures = [future_of(completer) for _ in range(depth + 1)]
    over = threading.Event()

    def wait_and_complete(number: int) -> None:
        futures[number + 1].wait()
        futures[number].set_result(number)

    for number in range(depth):
        completer.run(lambda number=number: wait_and_complete(number))  # type: ignore[misc]
    completer.run(lambda: futures[depth].set_result(depth))
    futures[0].add_done_callback(lambda _: over.set())
    wait_for(over)
    completer.run(lambda: None)
    completer.stop()


def test_a_call_that_waits_in_a_way_that_nobody_sees_is_passed_after_a_time(completer: Completer, later: Later) -> None:
    began, released, passed, over = (threading.Event() for _ in range(4))

    def block() -> None:
        began.set()
        wait_for(released)
        over.set()

    completer.run(block)
    wait_for(began)
    assert not later.calls, "nobody waits for it yet"
    completer.run(passed.set)
    assert len(later.calls) == 1
    assert not passed.is_set()
    later.make()
    wait_for(passed)
    released.set()
    wait_for(over)
    completer.stop()


def test_a_call_that_ends_in_time_keeps_the_turn(completer: Completer, later: Later) -> None:
    began, released, over = (threading.Event() for _ in range(3))
    threads: list[int] = []

    def block() -> None:
        began.set()
        wait_for(released)
        threads.append(threading.get_ident())

    completer.run(block)
    wait_for(began)
    completer.run(lambda: threads.append(threading.get_ident()))
    completer.run(over.set)
    released.set()
    wait_for(over)
    later.make()
    assert len(set(threads)) == 1
    completer.stop()


def test_what_comes_after_the_end_is_called_all_the_same(completer: Completer) -> None:
    completer.stop()
    over = threading.Event()
    completer.run(over.set)
    wait_for(over)


def test_its_threads_end(completer: Completer) -> None:
    threads: list[threading.Thread] = []
    begun, over = threading.Event(), threading.Event()
    completer.run(lambda: threads.append(threading.current_thread()))
    completer.run(begun.set)
    wait_for(begun)
    completer.stop()
    completer.run(over.set)
    wait_for(over)
    threads[0].join(scaled(WAIT_S))
    assert not threads[0].is_alive()

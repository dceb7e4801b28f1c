"""When a wait may spin, and that it lets the others run meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.spinning import LOOK_S, MAX_MISSES, MIN_STREAK, QUICK, REST, QuickWaits
from multiworld.wire.progress.waiting import OperationCancelled, wait_async


def paying() -> QuickWaits:
    quick_waits = QuickWaits()
    for _ in range(MIN_STREAK):
        quick_waits.waited(QUICK * LOOK_S / 2)
    return quick_waits


def test_spinning_begins_after_several_quick_waits_and_ends_with_one_that_was_not() -> None:
    quick_waits = QuickWaits()
    for _ in range(MIN_STREAK):
        assert not quick_waits.pay
        quick_waits.waited(QUICK * LOOK_S / 2)
    assert quick_waits.pay
    quick_waits.waited(QUICK * LOOK_S)
    assert not quick_waits.pay


def test_tries_in_vain_are_given_up_for_a_while() -> None:
    quick_waits = paying()
    for _ in range(MAX_MISSES):
        assert quick_waits.pay
        quick_waits.waited(2 * LOOK_S)  # quick enough to try, too long to succeed
    for _ in range(REST + MIN_STREAK):
        assert not quick_waits.pay
        quick_waits.waited(2 * LOOK_S)
    assert quick_waits.pay


def test_a_wait_that_goes_on_after_a_look_in_vain_began_with_it() -> None:
    quick_waits = paying()
    assert quick_waits.since(1, 7.0) == 7.0
    quick_waits.looked_in_vain(1, 8.0)
    assert quick_waits.since(2, 8.0 + LOOK_S) == 8.0 + LOOK_S, "that thread has not looked"
    assert quick_waits.since(1, 8.0 + LOOK_S) == 8.0
    assert quick_waits.since(1, 8.0 + LOOK_S) == 8.0 + LOOK_S, "that was another wait"


def test_looks_in_vain_are_given_up_although_the_waits_go_on_elsewhere() -> None:
    quick_waits = paying()
    for number in range(MAX_MISSES):
        assert quick_waits.pay
        quick_waits.looked_in_vain(1, float(number))
    quick_waits.looked_in_vain(1, float(MAX_MISSES))
    assert not quick_waits.pay


def test_a_look_in_vain_says_nothing_of_a_wait_long_after_it() -> None:
    quick_waits = paying()
    quick_waits.looked_in_vain(1, 8.0)
    assert quick_waits.since(1, 9.0) == 9.0
    quick_waits.waited(LOOK_S / 2)
    assert quick_waits.pay


def test_one_success_in_between_keeps_it_going() -> None:
    quick_waits = paying()
    for _ in range(3):
        for _ in range(MAX_MISSES - 1):
            quick_waits.waited(2 * LOOK_S)
        quick_waits.waited(LOOK_S / 2)
    assert quick_waits.pay


def test_a_long_wait_while_it_rests_does_not_shorten_the_rest() -> None:
    quick_waits = paying()
    for _ in range(MAX_MISSES):
        quick_waits.waited(2 * LOOK_S)
    for _ in range(REST + MIN_STREAK - 1):
        quick_waits.waited(QUICK * LOOK_S)
        quick_waits.waited(LOOK_S / 2)
        assert not quick_waits.pay


async def test_a_spinning_task_lets_another_complete_what_it_waits_for() -> None:
    operation: Operation[int] = Operation()
    asyncio.get_running_loop().call_soon(operation.succeed, 7)
    assert await wait_async(operation, paying()) == 7


async def test_a_wait_that_takes_long_sleeps_and_does_not_spin_the_next_time() -> None:
    operation: Operation[int] = Operation()
    quick_waits = paying()
    asyncio.get_running_loop().call_later(50 * LOOK_S, operation.succeed, 7)
    assert await wait_async(operation, quick_waits) == 7
    assert not quick_waits.pay


async def test_cancelling_a_spinning_task_cancels_its_operation() -> None:
    operation: Operation[int] = Operation()
    task = asyncio.create_task(wait_async(operation, paying()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(operation.error, OperationCancelled)

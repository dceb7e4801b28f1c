"""Operations and driven steps: who completes wins, cancelling detaches first, steps stop before cancel returns."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import NoReturn

import pytest

from multiworld.errors import WorldClosedError
from multiworld.wire.progress.operation import Operation, StepsCancelled, drive
from multiworld.wire.progress.waiting import (
    OperationCancelled,
    start_and_wait,
    wait_async,
    wait_blocking,
    wait_to_the_end,
)


class Sorry(Exception):
    pass


def ignore(_: object) -> None:
    """Turn a call with a result into one without."""


def test_the_first_completion_wins() -> None:
    operation: Operation[int] = Operation()
    assert not operation.done
    assert operation.succeed(1)
    assert not operation.succeed(2)
    assert not operation.fail(Sorry())
    assert not operation.cancel(Sorry())
    assert operation.done
    assert operation.result() == 1
    assert operation.error is None


def test_callbacks_run_once_on_completion_or_at_once_after_it() -> None:
    operation: Operation[int] = Operation()
    seen: list[str] = []
    operation.add_callback(lambda _: seen.append("before"))
    operation.fail(Sorry())
    operation.fail(Sorry())
    operation.add_callback(lambda _: seen.append("after"))
    assert seen == ["before", "after"]
    with pytest.raises(Sorry):
        operation.result()


def test_a_settled_operation_is_complete_before_anybody_is_told() -> None:
    detached: list[str] = []
    operation: Operation[int] = Operation(lambda: detached.append("detached"))
    seen: list[int] = []
    operation.add_callback(lambda done: seen.append(done.result()))
    assert operation.settle(1)
    assert not operation.settle(2)
    assert not operation.cancel(Sorry())
    assert not operation.fail(Sorry())
    assert operation.done
    assert operation.completed_here
    assert not seen
    assert not detached
    operation.tell()
    operation.tell()
    assert seen == [1]
    operation.add_callback(lambda done: seen.append(done.result() + 1))
    assert seen == [1, 2]


def test_a_discarded_callback_is_not_called() -> None:
    operation: Operation[int] = Operation()
    seen: list[str] = []
    kept, discarded = (lambda _: seen.append("kept")), (lambda _: seen.append("discarded"))
    operation.discard_callback(discarded)
    for callback in (kept, discarded):
        operation.add_callback(callback)
    operation.discard_callback(discarded)
    operation.discard_callback(discarded)
    operation.succeed(1)
    operation.discard_callback(kept)
    assert seen == ["kept"]


def test_many_threads_complete_an_operation_once() -> None:
    for _ in range(50):
        operation: Operation[int] = Operation()
        calls: list[int] = []
        operation.add_callback(lambda done, calls=calls: calls.append(done.result()))  # type: ignore[misc]
        start = threading.Barrier(4)
        won: list[bool] = []

        def complete(value: int, operation: Operation[int], start: threading.Barrier, won: list[bool]) -> None:
            start.wait()
            won.append(operation.succeed(value))

        threads = [threading.Thread(target=complete, args=(value, operation, start, won)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won.count(True) == 1
        assert calls == [operation.result()]


def test_cancel_detaches_before_it_fails() -> None:
    order: list[str] = []
    operation: Operation[int] = Operation(lambda: order.append("detached"))
    operation.add_callback(lambda _: order.append("failed"))
    assert operation.cancel(Sorry())
    assert order == ["detached", "failed"]


def test_the_error_of_cancel_wins_over_what_the_parts_say_while_they_are_detached() -> None:
    inner: Operation[int] = Operation()
    outer: Operation[int] = Operation(lambda: ignore(inner.cancel(Sorry("inner"))))
    inner.add_callback(lambda done: ignore(outer.fail(done.error or Sorry())))
    error = WorldClosedError("w", 1)
    assert outer.cancel(error)
    assert outer.error is error


def test_a_success_while_an_operation_is_detached_is_kept() -> None:
    operation: Operation[int] = Operation()
    operation.on_cancel = lambda: ignore(operation.succeed(3))
    assert not operation.cancel(Sorry())
    assert operation.result() == 3


def test_cancel_survives_a_completion_that_clears_its_hook_meanwhile() -> None:
    for _ in range(200):
        operation: Operation[int] = Operation(lambda: None)
        start = threading.Barrier(2)

        def complete(operation: Operation[int] = operation, start: threading.Barrier = start) -> None:
            start.wait()
            operation.succeed(1)

        thread = threading.Thread(target=complete)
        thread.start()
        start.wait()
        operation.cancel(Sorry())
        thread.join()
        assert operation.done


async def test_a_cancelled_task_has_cancelled_its_operation_when_it_ends() -> None:
    detached = threading.Event()
    operation: Operation[int] = Operation(detached.set)
    task = asyncio.create_task(wait_async(operation))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert detached.is_set()
    assert isinstance(operation.error, OperationCancelled)


@pytest.mark.parametrize("slow", [False, True])
async def test_a_success_that_a_cancelled_task_never_heard_of_is_taken_back(slow: bool) -> None:
    operation: Operation[None] = Operation()
    undone: list[int] = []
    operation.on_undo, operation.slow_cancel = lambda: undone.append(1), slow
    task = asyncio.create_task(wait_async(operation))
    await asyncio.sleep(0)
    operation.succeed(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == [1]


def test_only_a_success_is_taken_back() -> None:
    undone: list[int] = []
    for end in (lambda operation: operation.fail(ValueError()), lambda operation: None):
        operation: Operation[None] = Operation()
        operation.on_undo = lambda: undone.append(1)
        end(operation)
        operation.cancel_or_undo(KeyError())
        assert operation.error is not None
    assert undone == []


async def test_one_error_that_ends_many_operations_is_raised_as_a_copy_in_each() -> None:
    error = WorldClosedError("w", 7)
    error.__cause__ = cause = Sorry()
    raised: list[BaseException] = []
    for _ in range(2):
        operation: Operation[int] = Operation()
        operation.fail(error)
        with pytest.raises(WorldClosedError) as info:
            await wait_async(operation)
        raised.append(info.value)
    assert raised[0] is not raised[1]
    assert all(each.args == ("w", 7) and each.__cause__ is cause for each in raised)


def test_a_thread_waits_for_another_to_complete() -> None:
    operation: Operation[int] = Operation()
    timer = threading.Timer(0.01, operation.succeed, (5,))
    timer.start()
    assert wait_blocking(operation) == 5
    timer.join()


def test_help_may_complete_what_a_thread_waits_for() -> None:
    operation: Operation[int] = Operation()
    assert wait_blocking(operation, help_with=lambda: ignore(operation.succeed(4))) == 4


# ---- drive


def test_steps_run_through_operations_that_are_done() -> None:
    async def steps() -> int:
        total = 0
        for value in range(1000):
            ready: Operation[int] = Operation()
            ready.succeed(value)
            total += await ready
        return total

    assert drive(steps()).result() == 499500


def test_steps_go_on_where_their_operation_is_completed() -> None:
    gate: Operation[str] = Operation()

    async def steps() -> tuple[str, int]:
        return await gate, threading.get_ident()

    outer = drive(steps())
    assert not outer.done
    thread = threading.Thread(target=gate.succeed, args=("open",))
    thread.start()
    thread.join()
    assert outer.result() == ("open", thread.ident)


def test_an_error_of_the_steps_or_of_what_they_wait_for_is_the_outcome() -> None:
    gate: Operation[None] = Operation()

    async def steps() -> None:
        await gate

    outer = drive(steps())
    gate.fail(Sorry())
    assert isinstance(outer.error, Sorry)

    async def broken() -> None:
        raise Sorry

    assert isinstance(drive(broken()).error, Sorry)


def test_steps_may_catch_the_error_of_one_operation_and_go_on() -> None:
    first: Operation[None] = Operation()
    second: Operation[str] = Operation()

    async def steps() -> str:
        try:
            await first
        except Sorry:
            return await second
        return "no"

    outer = drive(steps())
    first.fail(Sorry())
    second.succeed("yes")
    assert outer.result() == "yes"


def test_cancelling_raises_in_the_steps_where_they_wait() -> None:
    detached: list[str] = []
    gate: Operation[None] = Operation(lambda: detached.append("gate"))

    async def steps() -> None:
        try:
            await gate
        except StepsCancelled:
            detached.append("steps")
            raise

    outer = drive(steps())
    error = Sorry()
    assert outer.cancel(error)
    assert outer.error is error
    assert detached == ["gate", "steps"]


def test_cancelled_steps_may_still_wait_while_they_clean_up() -> None:
    gate: Operation[None] = Operation()
    cleaned: Operation[None] = Operation()
    ended: list[str] = []

    async def steps() -> None:
        try:
            await gate
        finally:
            await cleaned
            ended.append("cleaned")

    outer = drive(steps())
    outer.cancel(Sorry())
    assert outer.done
    assert not ended
    assert not cleaned.done
    cleaned.succeed(None)
    assert ended == ["cleaned"]


def test_cancel_waits_until_steps_that_run_elsewhere_have_stopped() -> None:
    """A step that is just writing into the caller's tensor must not do so after cancel has returned."""
    gate: Operation[None] = Operation()
    never: Operation[None] = Operation()
    running, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    async def steps() -> None:
        await gate
        running.set()
        go_on.wait()
        written.append("inside")
        await never
        written.append("late")

    outer = drive(steps())
    completing = threading.Thread(target=gate.succeed, args=(None,))
    completing.start()
    running.wait()
    cancelled: list[list[str]] = []

    def cancel() -> None:
        outer.cancel(Sorry())
        cancelled.append(list(written))

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    cancelling.join(0.05)
    assert cancelling.is_alive(), "cancel returned while the steps were running"
    go_on.set()
    completing.join()
    cancelling.join()
    assert cancelled == [["inside"]]
    assert isinstance(never.error, StepsCancelled)
    never.succeed(None)
    assert written == ["inside"]


def test_steps_that_cancel_themselves_stop_at_their_next_wait() -> None:
    never: Operation[None] = Operation()
    outers: list[Operation[None]] = []
    gate: Operation[None] = Operation()

    async def steps() -> None:
        await gate
        outers[0].cancel(Sorry())
        await never

    outers.append(drive(steps()))
    gate.succeed(None)
    assert isinstance(outers[0].error, Sorry)
    assert isinstance(never.error, StepsCancelled)


def test_cancel_reaches_steps_within_steps() -> None:
    gate: Operation[None] = Operation()
    seen: list[str] = []

    async def inner() -> None:
        try:
            await gate
        except StepsCancelled:
            seen.append("inner")
            raise

    async def outer() -> None:
        try:
            await drive(inner())
        except StepsCancelled:
            seen.append("outer")
            raise

    drive(outer()).cancel(Sorry())
    assert seen == ["inner", "outer"]


def test_a_cancel_that_meets_an_operation_as_it_ends_is_raised_at_the_next_wait() -> None:
    gate: Operation[None] = Operation()
    ending: Operation[None] = Operation()
    ending.on_cancel = lambda: ignore(ending.succeed(None))
    never: Operation[None] = Operation()
    running, go_on = threading.Event(), threading.Event()

    async def steps() -> None:
        await gate
        running.set()
        go_on.wait()
        await ending
        await never

    outer = drive(steps())
    completing = threading.Thread(target=gate.succeed, args=(None,))
    completing.start()
    running.wait()
    cancelling = threading.Thread(target=outer.cancel, args=(Sorry(),))
    cancelling.start()
    go_on.set()
    completing.join()
    cancelling.join()
    assert isinstance(never.error, StepsCancelled)
    assert isinstance(outer.error, Sorry)


def test_cancel_races_with_completion_without_a_late_write_or_a_lost_wake_up() -> None:
    for _ in range(300):
        gates: list[Operation[None]] = [Operation() for _ in range(3)]
        written: list[int] = []

        async def steps(gates: list[Operation[None]] = gates, written: list[int] = written) -> int:
            for index, gate in enumerate(gates):
                await gate
                written.append(index)
            return len(written)

        outer = drive(steps())
        start = threading.Barrier(2)

        def complete(gates: list[Operation[None]] = gates, start: threading.Barrier = start) -> None:
            start.wait()
            for gate in gates:
                gate.succeed(None)

        thread = threading.Thread(target=complete)
        thread.start()
        start.wait()
        outer.cancel(Sorry())
        at_return = list(written)
        thread.join()
        assert outer.done
        assert written == at_return
        if outer.error is None:
            assert written == [0, 1, 2]


def test_a_chain_of_many_steps_does_not_grow_the_stack() -> None:
    gates: list[Operation[int]] = [Operation() for _ in range(5000)]

    async def steps() -> int:
        return sum([await gate for gate in gates])

    outer = drive(steps())
    for gate in gates:
        partial(gate.succeed, 1)()
    assert outer.result() == 5000


def test_an_error_that_ends_many_operations_keeps_none_of_their_frames_alive() -> None:
    shared = WorldClosedError("w", 1)

    async def steps(gate: Operation[None]) -> None:
        await gate

    for _ in range(3):
        gate: Operation[None] = Operation()
        outer = drive(steps(gate))
        gate.fail(shared)
        assert outer.error is shared
    assert shared.__traceback__ is None


async def test_cleaning_up_is_waited_for_by_a_cancelled_task_too_and_then_it_learns() -> None:
    operation: Operation[int] = Operation()
    seen: list[str] = []

    async def clean_up() -> None:
        try:
            await wait_to_the_end(operation)
        finally:
            seen.append("over" if operation.done else "too early")

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    operation.succeed(1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["over"]


def test_an_operation_whose_detaching_fails_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def detach() -> None:
        raise MemoryError

    operation: Operation[int] = Operation(detach)
    assert operation.cancel(ValueError("enough"))
    assert isinstance(operation.error, ValueError)
    assert "detaching" in caplog.text


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_an_interrupt_while_an_interrupted_wait_is_undone_does_not_end_that() -> None:
    num_interrupts = 2

    def detach() -> None:
        nonlocal num_interrupts
        if num_interrupts:
            num_interrupts -= 1
            interrupt()

    operation: Operation[int] = Operation(detach)
    with pytest.raises(KeyboardInterrupt):
        wait_blocking(operation, help_with=interrupt)
    assert num_interrupts == 0
    assert isinstance(operation.error, OperationCancelled)


@pytest.mark.parametrize("is_done", [False, True])
def test_an_interrupt_undoes_what_was_started_whether_it_was_done_or_not(*, is_done: bool) -> None:
    undone: list[str] = []
    pending: Operation[int] = Operation(lambda: undone.append("cancelled"))
    done = Operation.succeeded(5, lambda: undone.append("given back"))
    with pytest.raises(KeyboardInterrupt):
        start_and_wait(lambda: done if is_done else pending, interrupt)
    assert undone == ["given back" if is_done else "cancelled"]


def test_what_was_started_and_is_done_is_returned_and_an_error_raised() -> None:
    given_back: list[None] = []
    done = Operation.succeeded(5, lambda: given_back.append(None))
    failed: Operation[int] = Operation()
    failed.fail(ValueError("no"))
    assert start_and_wait(lambda: done, wait_blocking) == 5
    with pytest.raises(ValueError, match="no"):
        start_and_wait(lambda: failed, wait_blocking)
    assert not given_back

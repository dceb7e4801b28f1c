"""The compute thread: order, errors, and work that is taken back or waited for when it is cancelled."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import pytest

from multiworld.testing import wait_until
from multiworld.wire.progress.compute_thread import ComputeThread
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.waiting import wait_blocking

pytestmark = pytest.mark.usefixtures("no_leaks")


class Sorry(Exception):
    pass


def wait_for(gate: threading.Event) -> None:
    gate.wait()


def test_work_runs_in_order_on_one_thread() -> None:
    compute = ComputeThread("test-compute")
    done: list[tuple[int, str]] = []
    operations = [
        compute.run(lambda index=index: done.append((index, threading.current_thread().name)))  # type: ignore[misc]
        for index in range(100)
    ]
    for operation in operations:
        wait_blocking(operation)
    compute.stop()
    assert done == [(index, "test-compute") for index in range(100)]


def test_an_error_belongs_to_the_one_who_waits() -> None:
    compute = ComputeThread("test-compute")

    def fail() -> None:
        raise Sorry

    failing, after = compute.run(fail), compute.run(lambda: None)
    with pytest.raises(Sorry):
        wait_blocking(failing)
    wait_blocking(after)
    compute.stop()


def test_no_thread_before_the_first_work_and_none_after_stop() -> None:
    compute = ComputeThread("test-compute-idle")
    assert "test-compute-idle" not in {thread.name for thread in threading.enumerate()}
    compute.stop()
    refused = compute.run(lambda: None)
    assert isinstance(refused.error, RuntimeError)


def test_stop_finishes_what_was_given_and_may_be_called_twice() -> None:
    compute = ComputeThread("test-compute")
    done: list[int] = []
    operations = [compute.run(lambda index=index: done.append(index)) for index in range(50)]  # type: ignore[misc]
    compute.stop()
    compute.stop()
    assert done == list(range(50))
    assert all(operation.done for operation in operations)


def test_no_work_is_lost_between_run_and_stop() -> None:
    for _ in range(50):
        compute = ComputeThread("test-compute")
        compute.run(lambda: None)
        operations: list[Operation[None]] = []

        def give(compute: ComputeThread = compute, operations: list[Operation[None]] = operations) -> None:
            operations.extend(compute.run(lambda: None) for _ in range(20))

        thread = threading.Thread(target=give)
        thread.start()
        compute.stop()
        thread.join()
        assert all(operation.done for operation in operations)


def test_cancelled_work_that_has_not_begun_never_runs() -> None:
    compute = ComputeThread("test-compute")
    gate = threading.Event()
    ran: list[str] = []
    first = compute.run(partial(wait_for, gate))
    second = compute.run(lambda: ran.append("second"))
    assert second.cancel(Sorry())
    gate.set()
    wait_blocking(first)
    compute.stop()
    assert ran == []


def test_cancel_waits_for_work_that_is_running() -> None:
    compute = ComputeThread("test-compute")
    begun, gate = threading.Event(), threading.Event()
    written: list[str] = []

    def work() -> None:
        begun.set()
        gate.wait()
        written.append("inside")

    operation = compute.run(work)
    begun.wait()
    seen: list[list[str]] = []

    def cancel() -> None:
        operation.cancel(Sorry())
        seen.append(list(written))

    thread = threading.Thread(target=cancel)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "cancel returned while the work could still write"
    gate.set()
    thread.join()
    compute.stop()
    assert seen == [["inside"]]


def test_work_is_released_when_it_is_done() -> None:
    class Held:
        pass

    compute = ComputeThread("test-compute")
    held = Held()
    reference = weakref.ref(held)
    wait_blocking(compute.run(lambda held=held: None))  # type: ignore[misc]
    del held

    def gone() -> bool:
        gc.collect()
        return reference() is None

    assert wait_until(gone, timeout_s=2)
    compute.stop()


def test_without_a_thread_work_fails_at_once_and_the_next_may_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = ComputeThread("test-compute")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="no thread for arithmetic: can't start new thread"):
            wait_blocking(compute.run(lambda: None))
        compute.stop()
    compute = ComputeThread("test-compute")
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        assert compute.run(lambda: None).error is not None
    wait_blocking(compute.run(lambda: None))
    compute.stop()

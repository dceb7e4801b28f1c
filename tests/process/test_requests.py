"""Requests on the blocking API: windows, waits with and without a time, cancelling, dropping, and what breaks them."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch

import multiworld as mw
from multiworld.testing import WorkerGroup, scaled, wait_until
from multiworld.testing.worker import report
from tests.process.one_process import in_thread, worlds

pytestmark = pytest.mark.usefixtures("no_leaks")

BACKENDS = ["shm", "gloo"]
LARGE = 3_000_000  # float32: more than goes without a receive, and more than gloo takes inline


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numel", [1, 200_000, LARGE])
def test_a_window_of_requests_keeps_order_and_data(backend: str, numel: int) -> None:
    with worlds(2, backend) as (first, second):

        def send() -> None:
            tensors = [torch.empty(numel) for _ in range(4)]
            window: list[mw.Request[None]] = []
            for number in range(12):
                if number >= 4:
                    window[number - 4].wait()
                window.append(first.blocking.isend(tensors[number % 4].fill_(number), 1))
            for request in window:
                request.wait()

        sending = in_thread(send)
        tensors = [torch.empty(numel) for _ in range(4)]
        window = [second.blocking.irecv(tensor, 0) for tensor in tensors]
        for number in range(12):
            window[number].wait()
            assert bool((tensors[number % 4] == number).all())
            if number + 4 < 12:
                window.append(second.blocking.irecv(tensors[number % 4], 0))
        sending.result()
        assert all(request.done and request.is_completed() and request.error is None for request in window)


def test_payloads_and_results() -> None:
    with worlds(2) as (first, second):
        first.blocking.isend_tensors({"a": torch.arange(3), "b": torch.ones(2, 2)}, 1).wait()
        received = second.blocking.irecv_tensors(0).wait()
        assert isinstance(received, dict)
        assert received["a"].tolist() == [0, 1, 2]
        request = second.blocking.irecv_any(tensor := torch.zeros(2), tag=5)
        first.blocking.isend(torch.ones(2), 1, tag=5)
        assert request.wait(scaled(5)) == 0
        assert request.result() == 0
        assert tensor.tolist() == [1.0, 1.0]


def test_every_collective_can_be_a_request() -> None:
    with worlds(2) as pair:

        def run(world: mw.World) -> list[list[float]]:
            start, other = world.blocking, 1 - world.rank
            mine = torch.full((2,), world.rank + 1.0)
            tensors = [mine.clone() for _ in range(5)]
            lists = [[torch.empty(2), torch.empty(2)] for _ in range(3)]
            requests = [
                start.ibroadcast(tensors[0], 1),
                start.iall_reduce(tensors[1]),
                start.ireduce(tensors[2], 0, mw.ReduceOp.MAX),
                start.iall_gather(lists[0], mine),
                start.igather(mine, lists[1] if world.rank == 0 else None, 0),
                start.iscatter(tensors[3], [mine, mine * 10] if world.rank == 1 else None, 1),
                start.ireduce_scatter(tensors[4], [mine, mine * 10]),
                start.iall_to_all(lists[2], [mine, mine * 10]),
                start.ibarrier(),
            ]
            for request in reversed(requests):
                request.wait(scaled(5))
            assert other in (0, 1)
            flat = [*tensors, *lists[0], *(lists[1] if world.rank == 0 else []), *lists[2]]
            return [tensor.tolist() for tensor in flat]

        runs = [in_thread(run, world) for world in pair]
        one, two, three = [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]
        ten, twenty, thirty = [10.0, 10.0], [20.0, 20.0], [30.0, 30.0]
        assert runs[0].result() == [two, three, two, two, three, one, two, one, two, one, two]
        assert runs[1].result() == [two, three, two, twenty, thirty, one, two, ten, twenty]


def test_a_wait_that_runs_out_leaves_the_operation_going() -> None:
    with worlds(2) as (first, second):
        tensor = torch.zeros(2)
        request = second.blocking.irecv(tensor, 0)
        with pytest.raises(TimeoutError, match=r"<Request irecv from rank 0 in world 'w': under way> has not ended"):
            request.wait(0.05)
        with pytest.raises(TimeoutError):
            request.wait(0)
        with pytest.raises(RuntimeError, match=r"has no result yet: wait\(\) for it"):
            request.result()
        for bad in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=r"timeout_s must be a number of seconds from 0, or None"):
                request.wait(bad)
        assert not request.done
        assert not isinstance(request.error, Exception)
        for _ in range(50):  # polling leaves nothing behind
            with pytest.raises(TimeoutError):
                request.wait(0)
        assert request._operation._callbacks is not None
        assert len(request._operation._callbacks) < 5
        first.blocking.send(torch.ones(2), 1)
        request.wait()
        assert tensor.tolist() == [1.0, 1.0]


def test_a_deadline_ends_the_operation_whether_or_not_somebody_waits() -> None:
    with worlds(2) as (first, second):
        request = second.blocking.irecv(torch.zeros(1), 0, timeout_s=0.05)
        with pytest.raises(mw.OperationTimeoutError, match="recv in world 'w'"):
            request.wait()
        unwatched = second.blocking.irecv(torch.zeros(1), 0, timeout_s=0.05)
        assert wait_until(lambda: unwatched.done, 5)
        assert isinstance(unwatched.error, mw.OperationTimeoutError)
        first.blocking.send(torch.ones(1), 1)
        second.blocking.recv(kept := torch.zeros(1), 0)
        assert float(kept) == 1.0


def test_cancelling_leaves_the_tensor_alone_and_the_message_where_it_is() -> None:
    with worlds(2) as (first, second):
        tensor = torch.zeros(2)
        request = second.blocking.irecv(tensor, 0)
        waiting = in_thread(request.wait)
        assert request.cancel()
        assert not request.cancel()
        with pytest.raises(mw.RequestCancelledError, match=r"irecv in world 'w' \(generation 1\) was cancelled here"):
            waiting.result()
        with pytest.raises(mw.RequestCancelledError):
            request.result()
        first.blocking.send(torch.ones(2), 1)
        second.blocking.recv(other := torch.zeros(2), 0)
        assert other.tolist() == [1.0, 1.0]
        assert tensor.tolist() == [0.0, 0.0]
        finished = first.blocking.isend(torch.ones(1), 1)
        finished.wait()
        assert not finished.cancel()
        assert finished.error is None


def test_many_threads_may_wait_for_one_request() -> None:
    with worlds(2) as (first, second):
        request = second.blocking.irecv_tensors(0)
        waiting = [in_thread(request.wait) for _ in range(4)]
        first.blocking.send_tensors(torch.arange(4), 1)
        results = [thread.result() for thread in waiting]
        assert all(result is results[0] for result in results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_dropped_goes_on_and_keeps_its_tensors(backend: str) -> None:
    with worlds(2, backend) as (first, second):
        first.blocking.isend(torch.arange(float(LARGE)), 1)  # nobody holds the tensor or the request
        second.blocking.irecv(tensor := torch.zeros(2), 0, tag=1)
        gc.collect()
        churn = [torch.full((LARGE,), -1.0) for _ in range(3)]
        second.blocking.recv(received := torch.empty(LARGE), 0)
        assert torch.equal(received, torch.arange(float(LARGE)))
        del churn
        first.blocking.send(torch.ones(2), 1, tag=1)
        first.blocking.send(torch.ones(1), 1, tag=2)
        second.blocking.recv(torch.empty(1), 0, tag=2)
        assert wait_until(lambda: tensor.tolist() == [1.0, 1.0], 5)


def test_an_error_that_nobody_looks_at_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> list[str]:
        return [record.message for record in caplog.records if "nobody waited" in record.message]

    with caplog.at_level(logging.ERROR), worlds(2) as (_, second):
        second.blocking.irecv(torch.zeros(1), 0, timeout_s=0.02)  # dropped while under way
        assert wait_until(lambda: len(logged()) == 1, 5)
        assert "irecv in world <World 'w' generation 1 rank 1 of 2" in logged()[0]
        assert "deadline" in logged()[0]
        kept = [second.blocking.irecv(torch.zeros(1), 0, timeout_s=0.02)]
        assert wait_until(lambda: kept[0].done, 5)
        kept.clear()  # dropped when it was over
        assert len(logged()) == 2
        looked_at = second.blocking.irecv(torch.zeros(1), 0, timeout_s=0.02)
        with pytest.raises(mw.OperationTimeoutError):
            looked_at.wait()
        cancelled = second.blocking.irecv(torch.zeros(1), 0)
        cancelled.cancel()
        del looked_at, cancelled
        gc.collect()
    assert len(logged()) == 2


def test_bad_arguments_raise_at_once_and_nothing_is_sent() -> None:
    with worlds(2) as (first, second):
        start = first.blocking
        with pytest.raises(ValueError, match=r"dst=0 is this process itself"):
            start.isend(torch.ones(1), 0)
        with pytest.raises(ValueError, match=r"src=2 is not a rank of this world: ranks are 0 to 1"):
            start.irecv(torch.ones(1), 2)
        with pytest.raises(TypeError, match=r"tensor must be a tensor, got int"):
            start.isend(3, 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"tag=-1 is out of range"):
            start.irecv_any(torch.ones(1), tag=-1)
        with pytest.raises(ValueError, match=r"timeout_s must be a positive number of seconds or None, got 0"):
            start.irecv_any(torch.ones(1), timeout_s=0)
        first.blocking.send(torch.ones(1), 1)
        second.blocking.recv(torch.ones(1), 0)


def test_a_broken_world_fails_what_is_under_way_and_refuses_more() -> None:
    with worlds(2) as (first, second):
        request = second.blocking.irecv(torch.zeros(1), 0)
        waiting = in_thread(request.wait)
        first.abort()
        with pytest.raises(mw.WorldBrokenError):
            waiting.result()
        with pytest.raises(mw.WorldBrokenError):
            request.wait()
        with pytest.raises(mw.WorldBrokenError):
            second.blocking.irecv(torch.zeros(1), 0)
        with pytest.raises(mw.WorldClosedError):
            first.blocking.isend(torch.zeros(1), 1)


def interrupted_while_waiting() -> None:
    """SIGINT in a wait, and in a blocked receive whose thread reads the connection itself."""

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with worlds(2) as (first, second):
        kept, given_up = torch.zeros(2), torch.zeros(2)
        request = second.blocking.irecv(kept, 0)
        waits: list[Callable[[], None]] = [request.wait, lambda: second.blocking.recv(given_up, 0, tag=1)]
        for wait in waits:
            timer = threading.Timer(0.1, interrupt)
            timer.start()
            try:
                wait()
            except KeyboardInterrupt:
                report("interrupted")
            timer.join()
        assert not request.done
        first.blocking.send(torch.ones(2), 1)
        request.wait()
        assert kept.tolist() == [1.0, 1.0]
        first.blocking.send(torch.ones(2), 1, tag=1)
        second.blocking.recv(other := torch.zeros(2), 0, tag=1)
        assert other.tolist() == [1.0, 1.0]
        assert given_up.tolist() == [0.0, 0.0]


def test_an_interrupted_wait_leaves_the_request_and_an_interrupted_receive_leaves_the_tensor_alone() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(interrupted_while_waiting)
        assert worker.wait() == 0, worker.describe()
        assert len(worker.events("interrupted")) == 2


def test_waiting_costs_no_patience_of_other_threads() -> None:
    """A thread that waits for one request reads for all of that peer's."""
    with worlds(2) as (first, second):
        tensors = [torch.zeros(1) for _ in range(8)]
        requests = [second.blocking.irecv(tensor, 0, tag) for tag, tensor in enumerate(tensors)]
        waiting = [in_thread(request.wait) for request in reversed(requests)]
        for tag in range(8):
            first.blocking.send(torch.full((1,), float(tag)), 1, tag)
        began = time.monotonic()
        for thread in waiting:
            thread.result()
        assert time.monotonic() - began < scaled(2)
        assert [float(tensor) for tensor in tensors] == [float(tag) for tag in range(8)]

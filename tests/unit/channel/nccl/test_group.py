"""NCCL groups against fakes: what surrounds their construction, what counts as success, and how they end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from multiworld.channel.nccl.cuda_queue import CudaQueue
from multiworld.channel.nccl.group import NcclGroup, abort_all, failure_of, without_watchdog
from tests.unit.channel.nccl.fake_cuda import Ends, FakeEvent, FakeLaunchStream, FakeWork

WAIT_S = 10.0
BLOCKING, WARNING = "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"


def _nothing() -> None:
    return


class FakeProcessGroup:
    """Connects and aborts as it is told."""

    def __init__(self) -> None:
        self.connected_to: list[torch.device] = []
        self.bound_device_id: torch.device | None = None
        self.num_aborts = 0
        self.on_connect: Callable[[], object] = _nothing
        self.on_abort: Callable[[], object] = _nothing

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.on_connect()
        self.connected_to.append(device)

    def abort(self) -> None:
        self.on_abort()
        self.num_aborts += 1


class Rig:
    """One group with its fakes."""

    def __init__(self, queue: CudaQueue) -> None:
        self.process_group = FakeProcessGroup()
        self.stream = FakeLaunchStream()
        self.made: list[tuple[Any, int, int, str]] = []
        self.device = torch.device("cuda", 1)
        self.group = NcclGroup(
            "test", 1, 2, self.device, queue, make=self._make, make_stream=lambda device: self.stream
        )

    def _make(self, store: Any, rank: int, size: int, label: str) -> FakeProcessGroup:
        self.made.append((store, rank, size, label))
        return self.process_group


@pytest.fixture
def queue() -> Iterator[CudaQueue]:
    queue = CudaQueue("test")
    yield queue
    queue.stop()
    assert queue.join(WAIT_S)


@pytest.fixture
def rig(queue: CudaQueue) -> Rig:
    rig = Rig(queue)
    rig.group.connect("store")
    return rig


def settle(queue: CudaQueue) -> None:
    """Return when what was launched has been launched, and what was watched has been asked again."""
    gives: list[Callable[[Callable[[], bool]], object]] = [queue.launch, queue.watch]
    for give in gives:
        done = threading.Event()

        def mark(done: threading.Event = done) -> bool:
            done.set()
            return True

        give(mark)
        assert done.wait(WAIT_S)


# ---- construction


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BLOCKING, "0")
    monkeypatch.delenv(WARNING, raising=False)
    with without_watchdog():
        assert os.environ[BLOCKING] == "1"
        assert os.environ[WARNING] == "false"
    assert os.environ[BLOCKING] == "0"
    assert WARNING not in os.environ


def test_the_environment_is_as_before_when_the_constructor_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BLOCKING, raising=False)
    monkeypatch.setenv(WARNING, "true")
    with pytest.raises(RuntimeError, match="no device"), without_watchdog():
        raise RuntimeError("no device")
    assert BLOCKING not in os.environ
    assert os.environ[WARNING] == "true"


def test_constructions_on_several_threads_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BLOCKING, raising=False)
    inside = threading.Event()
    go = threading.Event()

    def construct() -> None:
        with without_watchdog():
            inside.set()
            go.wait(WAIT_S)

    threads = [threading.Thread(target=construct) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert inside.wait(WAIT_S)
    go.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert BLOCKING not in os.environ


def test_a_group_connects_to_its_device_at_once(rig: Rig) -> None:
    assert rig.made == [("store", 1, 2, "test")]
    assert rig.process_group.bound_device_id == rig.device
    assert rig.process_group.connected_to == [rig.device]


def test_a_group_that_is_closed_while_it_connects_is_aborted(queue: CudaQueue) -> None:
    rig = Rig(queue)
    rig.process_group.on_connect = rig.group.close
    with pytest.raises(RuntimeError, match="closed"):
        rig.group.connect("store")
    assert rig.process_group.num_aborts == 1
    with pytest.raises(RuntimeError, match="closed"):
        rig.group.connect("store")
    assert len(rig.made) == 1


# ---- launching and success


def test_operations_are_launched_in_order_behind_their_events(rig: Rig, queue: CudaQueue) -> None:
    events = [FakeEvent(), FakeEvent()]
    started: list[tuple[int, Any, str]] = []

    def start(number: int) -> Any:
        def call(group: Any) -> FakeWork:
            started.append((number, group, threading.current_thread().name))
            return FakeWork(complete=True)

        return call

    ends = Ends()
    for number in range(2):
        assert rig.group.launch([events[number]], start(number), ends)
    assert ends.wait(2) == ["ok", "ok"]
    assert [number for number, _, _ in started] == [0, 1]
    assert {group for _, group, _ in started} == {rig.process_group}
    assert {thread for _, _, thread in started} == {"test-launch"}
    assert rig.stream.issued == [[events[0]], [events[1]]]
    assert set(ends.threads) == {"test-poll"}


def test_an_operation_is_done_when_its_event_is_over_and_not_before(rig: Rig, queue: CudaQueue) -> None:
    work, ends = FakeWork(), Ends()
    rig.group.launch([], lambda group: work, ends)
    settle(queue)
    assert ends.outcomes == []
    rig.stream.ends[0].over = False
    work.complete = True
    settle(queue)
    assert ends.outcomes == []
    rig.stream.ends[0].over = True
    assert ends.wait() == ["ok"]


def test_a_failed_work_is_told_while_its_kernel_still_runs(rig: Rig, queue: CudaQueue) -> None:
    work, ends = FakeWork(), Ends()
    rig.group.launch([], lambda group: work, ends)
    settle(queue)
    rig.stream.ends[0].over = False
    work.failure = "remote error"
    assert ends.wait() == ["remote error"]


def test_a_work_that_is_done_and_failed_has_failed(rig: Rig) -> None:
    ends = Ends()
    rig.group.launch([], lambda group: FakeWork(complete=True, failure="system error"), ends)
    assert ends.wait() == ["system error"]


def test_a_device_that_cannot_be_asked_fails_the_operation(rig: Rig) -> None:
    work, ends = FakeWork(), Ends()

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    work.on_asked = broken
    rig.group.launch([], lambda group: work, ends)
    assert "illegal memory access" in ends.wait()[0]


def test_a_launch_that_the_library_refuses_fails_alone(rig: Rig) -> None:
    ends = Ends()

    def refuse(group: Any) -> Any:
        raise ValueError("Tensors must be contiguous")

    rig.group.launch([], refuse, ends)
    rig.group.launch([], lambda group: FakeWork(complete=True), ends)
    assert ends.wait(2) == ["Tensors must be contiguous", "ok"]


# ---- the end


def test_a_kernel_that_an_abort_ended_is_never_a_success(rig: Rig, queue: CudaQueue) -> None:
    work, ends = FakeWork(), Ends()
    rig.group.launch([], lambda group: work, ends)
    settle(queue)
    rig.group.close()
    work.complete = True  # as the abort makes it look
    settle(queue)
    assert ends.outcomes == []


def test_an_abort_between_the_look_and_the_word_is_seen(rig: Rig, queue: CudaQueue) -> None:
    work, ends = FakeWork(complete=True), Ends()
    work.on_asked = rig.group.close
    rig.group.launch([], lambda group: work, ends)
    settle(queue)
    settle(queue)
    assert ends.outcomes == []


def test_nothing_is_launched_once_closed(rig: Rig, queue: CudaQueue) -> None:
    ends = Ends()
    gate = threading.Event()
    queue.launch(lambda: gate.wait(WAIT_S))
    assert rig.group.launch([], lambda group: FakeWork(complete=True), ends)
    rig.group.close()
    gate.set()
    settle(queue)
    assert not rig.group.launch([], lambda group: FakeWork(complete=True), ends)
    assert rig.stream.issued == []
    assert ends.outcomes == []


def test_a_launch_that_waits_for_a_lost_peer_holds_up_neither_the_questions_nor_the_abort(
    rig: Rig, queue: CudaQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiworld.channel.nccl.group.CALL_GRACE_S", 0.01)
    first, released, stuck = FakeWork(), threading.Event(), threading.Event()
    ends = Ends()

    def wait_for_peer(group: Any) -> Any:
        stuck.set()
        released.wait(WAIT_S)
        raise RuntimeError("aborted")

    rig.group.launch([], lambda group: first, ends)
    rig.group.launch([], wait_for_peer, ends)
    assert stuck.wait(WAIT_S)
    asked = threading.Event()
    queue.watch(lambda: asked.set() or True)  # type: ignore[func-returns-value]
    assert asked.wait(WAIT_S)
    rig.process_group.on_abort = released.set
    rig.group.close()
    assert abort_all([rig.group], None, WAIT_S)
    settle(queue)
    assert ends.outcomes == []


def test_all_groups_are_aborted_at_once(queue: CudaQueue) -> None:
    """Each abort here waits for the others, as the memory of one communicator may wait for another's kernels."""
    together = threading.Barrier(3)
    rigs = [Rig(queue) for _ in range(3)]
    for rig in rigs:
        rig.group.connect("store")
        rig.process_group.on_abort = lambda: together.wait(WAIT_S)
        rig.group.close()
    unconnected = Rig(queue).group
    assert abort_all([unconnected, *(rig.group for rig in rigs)], None, WAIT_S)
    assert not together.broken


def test_an_abort_that_does_not_come_back_is_left_behind(rig: Rig) -> None:
    gate = threading.Event()
    rig.process_group.on_abort = lambda: gate.wait(WAIT_S)
    rig.group.close()
    assert not abort_all([rig.group], None, 0.05)
    gate.set()


def test_an_abort_that_fails_is_not_an_end(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("unhandled cuda error")

    rig.process_group.on_abort = fail
    rig.group.close()
    assert not abort_all([rig.group], None, WAIT_S)
    assert "unhandled cuda error" in caplog.text


# ---- errors


def test_a_failure_has_the_words_of_the_library() -> None:
    assert failure_of(FakeWork(complete=True)) is None
    assert str(failure_of(FakeWork(failure="NCCL error: remote process exited"))) == "NCCL error: remote process exited"


def test_a_failure_whose_words_cannot_be_had_is_one_all_the_same() -> None:
    class Unconvertible(FakeWork):
        def exception(self) -> Exception | None:
            raise TypeError("Unable to convert function return value to a Python type")

    class Silent(FakeWork):
        def exception(self) -> Exception | None:
            return None

    assert isinstance(failure_of(Unconvertible(failure="lost")), RuntimeError)
    assert "NCCL reported an error" in str(failure_of(Silent(failure="lost")))

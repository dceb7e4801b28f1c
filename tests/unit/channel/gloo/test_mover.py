"""The mover over Gloo, against a fake process group: order, tails, copies, and an end that leaves nothing open."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta

import pytest
import torch
from torch import Tensor

from multiworld.channel.gloo.mover import DIRECT_BYTES, NUM_TAGS, GlooMover
from multiworld.channel.threads import SerialThread
from multiworld.testing import wait_until

WAIT_S = 10.0


class FakeWork:
    """Ends when it is told to."""

    def __init__(self) -> None:
        self._outcome: queue.SimpleQueue[RuntimeError | None] = queue.SimpleQueue()

    def end(self, error: RuntimeError | None = None) -> None:
        self._outcome.put(error)

    def wait(self, timeout: timedelta) -> None:
        error = self._outcome.get(timeout=WAIT_S)
        if error is not None:
            raise error


class FakeGroup:
    """Records what is issued, and on which thread."""

    def __init__(self) -> None:
        self.issued: list[tuple[str, int, int]] = []  # what, tag, bytes
        self.works: list[FakeWork] = []
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False
        self.ready = True
        self.num_connects = 0

    def connect(self) -> None:
        self.num_connects += 1

    def send(self, tensor: Tensor, peer: int, tag: int) -> FakeWork:
        return self._issue("send", tensor, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> FakeWork:
        return self._issue("recv", tensor, tag)

    def _issue(self, what: str, tensor: Tensor, tag: int) -> FakeWork:
        self.gate.wait(WAIT_S)
        if self.closed:
            raise RuntimeError("closed")
        self.issued.append((what, tag, tensor.nbytes))
        self.threads.append(threading.current_thread().name)
        self.works.append(FakeWork())
        return self.works[-1]


class Ends:
    """Collects how transfers ended."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __call__(self, error: Exception | None) -> None:
        self._queue.put("ok" if error is None else str(error))

    def next(self) -> str:
        return self._queue.get(timeout=WAIT_S)

    @property
    def none_yet(self) -> bool:
        return self._queue.empty()


def close(mover: GlooMover, group: FakeGroup) -> None:
    mover.close()
    for work in group.works:  # as closing the connections does
        work.end(RuntimeError("closed"))
    mover.let_go()
    mover.release(RuntimeError("over"))
    assert mover.join(WAIT_S)


def test_each_payload_is_followed_by_an_empty_tail_on_the_next_tag() -> None:
    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    payload = torch.zeros(100)
    assert mover.send(7, [payload], payload.nbytes, ends)
    assert mover.recv(9, payload, ends)
    assert group.issued == [("send", 14, 400), ("send", 15, 0), ("recv", 18, 400), ("recv", 19, 0)]
    close(mover, group)


def test_tags_stay_below_the_one_that_is_kept_for_the_end() -> None:
    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    for number in (2**30 - 2, 2**30 - 1, 2**30, 2**62):
        mover.send(number, [torch.zeros(1)], 4, ends)
    tags = [tag for _, tag, _ in group.issued]
    assert len(set(tags[:4])) == 4
    assert all(0 <= tag <= NUM_TAGS for tag in tags)
    close(mover, group)


def test_a_receive_ends_with_its_tail_and_a_send_with_the_word_of_the_peer() -> None:
    group, received, sent = FakeGroup(), Ends(), Ends()
    mover = GlooMover(group, 1, "test")
    payload = torch.zeros(100)
    mover.recv(1, payload, received)
    mover.send(1, [payload], payload.nbytes, sent)
    assert received.none_yet
    group.works[1].end()
    assert received.next() == "ok"
    assert sent.none_yet
    mover.sent(1)
    assert sent.next() == "ok"
    assert not mover.busy
    mover.sent(1)  # said twice: nothing more happens
    assert sent.none_yet
    close(mover, group)


def test_a_tail_that_fails_fails_its_payload() -> None:
    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    mover.recv(1, torch.zeros(1), ends)
    group.works[1].end(RuntimeError("connection closed by peer"))
    assert ends.next() == "connection closed by peer"
    close(mover, group)


def test_the_calling_thread_issues_while_little_is_moving_and_never_waits_for_much() -> None:
    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    large = torch.zeros(DIRECT_BYTES // 4 + 1)
    here = threading.current_thread().name
    mover.send(1, [large], large.nbytes, ends)
    assert group.threads == [here] * 2
    group.gate.clear()
    mover.send(2, [large], large.nbytes, ends)  # returns although the group is busy
    group.gate.set()
    mover.close()
    assert mover.join(WAIT_S)
    assert group.threads[2:] == ["test-issue"] * 2
    close(mover, group)


def test_a_group_that_is_not_connected_is_asked_to_and_nobody_but_its_thread_waits_for_it() -> None:
    group, ends = FakeGroup(), Ends()
    group.ready = False
    mover = GlooMover(group, 1, "test")
    assert not mover.prepare()
    assert group.num_connects == 1
    group.gate.clear()
    mover.recv(1, torch.zeros(100), ends)  # the peer was connected first, and has sent
    assert group.issued == []
    group.ready = True
    assert mover.prepare()
    group.gate.set()
    assert wait_until(lambda: len(group.works) == 2, WAIT_S)
    assert group.threads == ["test-issue"] * 2
    close(mover, group)


def test_several_tensors_go_as_one_aligned_payload() -> None:
    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    mover.send(1, [torch.zeros(3), torch.zeros(5)], 128, ends)
    mover.close()
    assert mover.join(WAIT_S)
    assert group.issued == [("send", 2, 128), ("send", 3, 0)]
    close(mover, group)


def test_a_send_that_has_not_begun_can_go_on_from_a_copy() -> None:
    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    large = torch.zeros(DIRECT_BYTES // 4 + 1)
    mover.send(1, [large], large.nbytes, ends)
    group.gate.clear()
    mover.send(2, [large], large.nbytes, ends)
    mover.send(3, [large], large.nbytes, ends)
    assert not mover.copy_unsent(1)
    assert mover.copy_unsent(3)
    group.gate.set()
    close(mover, group)


@pytest.mark.parametrize("error", [RuntimeError("no memory"), MemoryError()], ids=["of PyTorch", "of Python"])
def test_a_send_that_there_is_no_memory_to_copy_has_to_be_waited_for(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still read the tensor of its caller."""

    def clone(_: Tensor) -> Tensor:
        raise error

    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    large = torch.zeros(DIRECT_BYTES // 4 + 1)
    mover.send(1, [large], large.nbytes, ends)
    group.gate.clear()
    mover.send(2, [large], large.nbytes, ends)
    mover.send(3, [large], large.nbytes, ends)
    monkeypatch.setattr(Tensor, "clone", clone)
    assert not mover.copy_unsent(3)
    monkeypatch.undo()
    group.gate.set()
    close(mover, group)


def test_closing_ends_everything_once_and_refuses_what_comes_later() -> None:
    group, ends = FakeGroup(), Ends()
    mover = GlooMover(group, 1, "test")
    payload = torch.zeros(100)
    mover.recv(1, payload, ends)
    mover.recv(2, payload, ends)
    mover.send(1, [payload], payload.nbytes, ends)
    assert not mover.wait_closed(0.0)
    mover.close()
    group.works[1].end(RuntimeError("closed"))
    group.works[3].end(RuntimeError("closed"))
    mover.let_go()
    assert mover.wait_closed(0.0)
    mover.release(RuntimeError("over"))
    assert mover.join(WAIT_S)
    outcomes = [ends.next() for _ in range(3)]
    assert set(outcomes) <= {"closed", "over"}
    assert ends.none_yet
    assert not mover.send(2, [payload], payload.nbytes, ends)
    assert not mover.recv(3, payload, ends)
    assert ends.none_yet


def test_a_group_that_refuses_ends_the_transfer_on_another_thread() -> None:
    """The caller may hold what the end needs."""
    group = FakeGroup()
    group.closed = True
    mover = GlooMover(group, 1, "test")
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    mover.send(1, [torch.zeros(1)], 4, lambda error: ended.put(threading.current_thread().name))
    assert ended.get(timeout=WAIT_S) == "test-issue"
    assert not mover.busy
    close(mover, group)


def test_a_thread_for_tasks_that_has_nothing_to_do_ends_and_the_next_task_starts_another() -> None:
    serial_thread, done = SerialThread("test-tasks", idle_s=0.02), queue.SimpleQueue[str]()

    def note() -> None:
        done.put(threading.current_thread().name)

    for _ in range(3):
        assert serial_thread.put(note)
        assert done.get(timeout=WAIT_S) == "test-tasks"
        assert wait_until(lambda: all(thread.name != "test-tasks" for thread in threading.enumerate()), WAIT_S)
    serial_thread.stop()
    assert serial_thread.join(WAIT_S)
    assert not serial_thread.put(note)


def test_tasks_that_no_thread_can_be_started_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    serial_thread = SerialThread("test-tasks")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raise_no_thread)
        assert not serial_thread.put(lambda: None)
    serial_thread.stop()
    assert serial_thread.join(WAIT_S)


def raise_no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_tasks_run_in_order_survive_a_defect_and_end(caplog: object) -> None:
    serial_thread = SerialThread("test-tasks")
    assert serial_thread.join(0.0)  # no thread yet
    done: list[int] = []

    def fail() -> None:
        raise ValueError("a defect")

    assert serial_thread.put(lambda: done.append(1))
    assert serial_thread.put(fail)
    assert serial_thread.put(lambda: done.append(2))
    serial_thread.stop()
    serial_thread.stop()
    assert serial_thread.join(WAIT_S)
    assert done == [1, 2]
    assert not serial_thread.put(lambda: done.append(3))

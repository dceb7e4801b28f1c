"""The mover over NCCL, against fake groups: two directions, order, copies, and an end that leaves nothing open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from multiworld.channel.nccl.cuda_order import StreamOrder
from multiworld.channel.nccl.mover import NcclMover
from tests.unit.channel.nccl.fake_cuda import Ends, FakeCuda, FakeEvent, FakeWork

WAIT_S = 10.0


class FakePair:
    """A group of two ranks that launches when it is told to; also the process group that the launches call."""

    def __init__(self) -> None:
        self.stores: list[Any] = []
        self.connecting: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.connected = threading.Semaphore(0)
        self.failure = ""
        self.closed = False
        self.launches: list[tuple[list[Any], Callable[[Any], Any], Callable[[Exception | None], None]]] = []
        self.issued: list[tuple[str, int, Tensor]] = []
        self._changed = threading.Condition()

    def connect(self, store: Any) -> None:
        self.stores.append(store)
        self.connecting.append(threading.current_thread().name)
        self.gate.wait(WAIT_S)
        if self.failure:
            raise RuntimeError(self.failure)

    def launch(self, after: Sequence[Any], start: Any, on_over: Any) -> bool:
        with self._changed:
            self.launches.append((list(after), start, on_over))
            self._changed.notify_all()
        return not self.closed

    def wait_launches(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.launches) >= number, WAIT_S)

    def start(self, index: int) -> None:
        self.wait_launches(index + 1)
        self.launches[index][1](self)

    def end(self, index: int, error: Exception | None = None) -> None:
        self.wait_launches(index + 1)
        self.launches[index][2](error)

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> FakeWork:
        return self._issue("send", tensors, peer)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> FakeWork:
        return self._issue("recv", tensors, peer)

    def _issue(self, what: str, tensors: list[Tensor], peer: int) -> FakeWork:
        (tensor,) = tensors
        self.issued.append((what, peer, tensor))
        return FakeWork()


class Rig:
    def __init__(self) -> None:
        self.out, self.into = FakePair(), FakePair()
        self.cuda = FakeCuda()
        self.order = StreamOrder(torch.device("cpu"), self.cuda)
        self.mover = NcclMover(self.out, self.into, partial(str, "out"), partial(str, "in"), self.order, "test")

    def close(self) -> None:
        self.mover.close()
        self.mover.let_go()
        self.mover.release(RuntimeError("over"))


def test_each_direction_has_a_group_of_its_own_connected_once_by_a_thread_of_its_own() -> None:
    rig, ends = Rig(), Ends()
    assert rig.out.connecting == []
    payload = torch.arange(3.0)
    assert rig.mover.send(1, [payload], payload.nbytes, ends)
    assert rig.mover.send(2, [payload], payload.nbytes, ends)
    rig.out.wait_launches(2)
    assert rig.out.stores == ["out"]
    assert rig.out.connecting == ["test-out-connect"]
    assert rig.into.connecting == []
    target = torch.empty(3)
    assert rig.mover.recv(1, target, ends)
    rig.into.start(0)
    rig.out.start(0)
    assert rig.into.stores == ["in"]
    assert [(what, peer, tensor.nbytes) for what, peer, tensor in rig.out.issued] == [("send", 1, 12)]
    assert [(what, peer, tensor.nbytes) for what, peer, tensor in rig.into.issued] == [("recv", 0, 12)]
    assert rig.into.issued[0][2].data_ptr() == target.data_ptr()
    rig.close()


def test_payloads_are_launched_in_the_order_of_their_headers_also_while_connecting() -> None:
    rig, ends = Rig(), Ends()
    rig.out.gate.clear()
    payloads = [torch.full((4,), float(number)) for number in range(4)]
    for number in (0, 1, 2):
        assert rig.mover.send(number, [payloads[number]], 16, ends)
    assert rig.out.launches == []
    rig.out.gate.set()
    rig.out.wait_launches(3)
    assert rig.mover.send(3, [payloads[3]], 16, ends)
    for index in range(4):
        rig.out.start(index)
    assert [tensor.view(torch.float32)[0].item() for _, _, tensor in rig.out.issued] == [0.0, 1.0, 2.0, 3.0]
    rig.close()


def test_a_transfer_ends_with_its_work_and_is_told_once() -> None:
    rig, ends = Rig(), Ends()
    payload = torch.zeros(4)
    rig.mover.send(1, [payload], 16, ends)
    rig.mover.recv(1, payload, ends)
    rig.out.end(0)
    assert ends.outcomes == ["ok"]
    rig.into.end(0, RuntimeError("remote error"))
    assert ends.outcomes == ["ok", "remote error"]
    assert rig.mover.tensors() == []
    rig.close()
    assert len(ends.outcomes) == 2


def test_a_launch_waits_for_what_the_callers_stream_held() -> None:
    rig, ends = Rig(), Ends()
    (alias,) = rig.order.after_now([torch.zeros(4)])
    (event,) = rig.order.events([alias])
    assert isinstance(event, FakeEvent)
    assert event.stream is rig.cuda.user_stream
    rig.mover.send(1, [alias], 16, ends)
    rig.out.wait_launches(1)
    assert rig.out.launches[0][0] == [event]
    buffer = rig.order.allocate(16)
    rig.mover.recv(1, buffer, ends)
    rig.into.wait_launches(1)
    assert rig.into.launches[0][0] == rig.order.events([buffer])
    assert rig.into.launches[0][0][0].stream is not rig.cuda.user_stream
    rig.close()


def test_several_tensors_go_as_one_aligned_payload() -> None:
    rig, ends = Rig(), Ends()
    first, second = torch.arange(3.0), torch.arange(5, dtype=torch.int64)
    rig.mover.send(1, [first, second], 128, ends)
    rig.out.start(0)
    (_, _, payload) = rig.out.issued[0]
    assert payload.nbytes == 128
    assert torch.equal(payload[:12].view(torch.float32), first)
    assert torch.equal(payload[64:104].view(torch.int64), second)
    assert any(tensor is payload for tensor in rig.mover.tensors())  # kept until it is over
    rig.close()


def test_a_send_that_is_not_launched_yet_can_go_on_from_a_copy() -> None:
    rig, ends = Rig(), Ends()
    payload = torch.ones(4)
    rig.mover.send(1, [payload], 16, ends)
    rig.out.wait_launches(1)
    assert rig.mover.copy_unsent(1)
    payload.zero_()
    rig.out.start(0)
    assert torch.equal(rig.out.issued[0][2].view(torch.float32), torch.ones(4))
    assert not rig.mover.copy_unsent(1)
    rig.out.end(0)
    assert rig.mover.copy_unsent(1)  # it is over: there is nothing to copy
    rig.close()


def test_a_send_whose_tensor_is_still_being_computed_cannot_be_copied() -> None:
    rig, ends = Rig(), Ends()
    (alias,) = rig.order.after_now([torch.ones(4)])
    rig.order.events([alias])[0].over = False
    rig.mover.send(1, [alias], 16, ends)
    assert not rig.mover.copy_unsent(1)
    rig.close()


def test_who_waits_for_a_connection_that_fails_is_told_on_another_thread() -> None:
    """The caller may hold what the end needs."""
    rig, ends = Rig(), Ends()
    rig.out.failure = "no route"
    rig.mover.send(1, [torch.zeros(4)], 16, ends)
    assert ends.wait() == ["NCCL could not connect: no route"]
    assert ends.threads == ["test-out-connect"]
    assert rig.mover.send(2, [torch.zeros(4)], 16, ends)  # the world is about to end
    rig.close()
    assert ends.wait(2)[1] == "over"


def test_closing_ends_everything_once_and_refuses_what_comes_later() -> None:
    rig, ends = Rig(), Ends()
    rig.out.gate.clear()
    payload = torch.zeros(4)
    rig.mover.send(1, [payload], 16, ends)
    rig.mover.recv(1, payload, ends)
    rig.into.wait_launches(1)
    rig.mover.close()
    assert not rig.mover.wait_closed(0.0)
    assert not rig.mover.send(2, [payload], 16, ends)
    assert not rig.mover.recv(2, payload, ends)
    rig.mover.let_go()
    assert rig.mover.wait_closed(0.0)
    rig.mover.release(RuntimeError("over"))
    assert ends.outcomes == ["over", "over"]
    rig.into.end(0)  # too late
    rig.out.gate.set()
    assert ends.outcomes == ["over", "over"]
    assert rig.out.launches == []

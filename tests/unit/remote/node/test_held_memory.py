"""A snapshot holds what was there at its beginning. Writes while it is sent do not change it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from multiworld.remote import NodeMemoryError
from multiworld.remote.node import held_memory
from multiworld.remote.node.held_memory import HeldMemory
from multiworld.remote.recovery.node_recovery import NodeRecovery

from ..fake_node import FakeNode, values


def test_a_memory_is_copied_once_before_a_write_or_in_its_turn() -> None:
    memory = torch.zeros(8, dtype=torch.uint8)
    held = HeldMemory(memory)
    assert not held.copied.done
    held.copy()
    assert held.copied.done
    memory.fill_(9)
    held.copy()
    assert held.take(2, 5).tolist() == [0, 0, 0]
    held.drop()


def test_a_copy_that_has_no_room_lets_the_write_go_on() -> None:
    held = HeldMemory(NoRoom(torch.zeros(8, dtype=torch.uint8)))  # type: ignore[arg-type]
    held.copy()
    assert held.copied.done
    with pytest.raises(MemoryError, match="no room"):
        held.take(0, 8)


class NoRoom:
    def __init__(self, memory: Tensor) -> None:
        self._memory = memory

    def __len__(self) -> int:
        return len(self._memory)

    def clone(self) -> Tensor:
        raise MemoryError("no room")


@pytest.fixture
def large_from_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.remote.node.snapshots.MIN_BYTES", 1)


@pytest.mark.usefixtures("large_from_one_byte")
def test_what_is_written_while_a_snapshot_is_sent_is_not_in_it(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = fake.node.zeros(1000), fake.node.ones(1000)
    part = x[10:20]
    fake.node.synchronize()
    goes_on = threading.Event()
    send = fake.bulk.peer.start_send_tensors

    def send_later(*args: object) -> object:
        goes_on.wait(10)
        return send(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(fake.bulk.peer, "start_send_tensors", send_later)
    recovery = NodeRecovery(fake.session)
    thread = threading.Thread(target=recovery.take_snapshot)
    thread.start()
    while recovery.num_records < 1:
        threading.Event().wait(0.001)
    part.add_(5)
    y.mul_(3)
    fake.node.synchronize()  # both were executed
    goes_on.set()
    thread.join(10)
    snapshot = recovery._snapshot
    assert snapshot is not None
    assert snapshot._memory.view(torch.float32).tolist() == [0] * 1000 + [1] * 1000
    assert fake.there._shared.sending == [] or all(each.operation.done for each in fake.there._shared.sending)
    fake.lose()
    fake.replace()
    assert values(x).sum().item() == 50
    assert values(y).sum().item() == 3000
    recovery.close()


@pytest.mark.usefixtures("large_from_one_byte")
def test_a_snapshot_that_is_given_up_on_the_way_is_an_error_and_no_more(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = fake.node.zeros(1000)
    recovery = NodeRecovery(fake.session)
    recovery.take_snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(held_memory.HeldMemory, "take", lambda *_: NoRoom(torch.empty(0)).clone())
        with pytest.raises(NodeMemoryError, match="a snapshot failed on node 1"):
            recovery.take_snapshot()
    x.add_(1)
    fake.node.synchronize()
    fake.lose()
    fake.replace()
    assert values(x).sum().item() == 1000
    recovery.close()

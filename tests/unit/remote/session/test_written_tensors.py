"""Large tensors between processes of one host: the master reads and writes them in the memory of the node."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from multiworld.remote import large_memory
from multiworld.remote.errors import NodeDeadError, NodeMemoryError
from multiworld.remote.large_memory import LargeMemory
from multiworld.remote.peer_memory import MIN_BYTES, PeerMemory, PeerMemoryError
from multiworld.wire.progress.operation import Operation

from ..fake_node import PATIENCE_S, FakeNode, remote_of, values

NUM = MIN_BYTES // 4


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    with FakeNode(reads_memory=True) as node:
        for bulk in (node.bulk, node.bulk.peer):
            monkeypatch.setattr(bulk, "start_send_tensors", refuse)
            monkeypatch.setattr(bulk, "wait_thread", result_of)
        yield node


def refuse(*_: object) -> None:
    raise AssertionError("a large tensor went over the world")


def result_of(operation: Operation[Any], *_: object) -> Any:
    assert operation.done, "a thread waits for a large tensor, and does not read the news of it"
    return operation.result()


def test_they_come_and_go(fake: FakeNode) -> None:
    here = torch.randn(NUM + 1)
    there = fake.node.send(here)
    assert torch.equal(values(there), here)
    assert torch.equal(values(there + 1), here + 1)
    assert torch.equal(asyncio.run(remote_of(there).fetched()), here)
    assert not fake.there._shared.accesses._reads
    assert not fake.there._shared.accesses._writes


def test_strides_and_types_stay(fake: FakeNode) -> None:
    here = torch.arange(2 * NUM).reshape(2, NUM).t()
    there = values(fake.node.send(here))
    assert torch.equal(there, here)
    assert there.stride() == here.stride()


def test_what_is_sent_again_and_again_has_the_same_memory(fake: FakeNode) -> None:
    here, addresses = torch.ones(NUM), set()
    for number in range(6):
        there = fake.node.send(here * number)
        back = values(there)
        assert back.sum() == NUM * number
        addresses.add(back.data_ptr())
        del there, back
    assert len(addresses) == 1


def test_a_write_waits_until_what_was_there_is_read(fake: FakeNode) -> None:
    there = fake.node.send(torch.ones(NUM))
    fetched = values(there)
    there.add_(1)
    assert (fetched.sum().item(), values(there).sum().item()) == (NUM, 2 * NUM)


def test_a_send_that_does_not_wait_is_there_when_it_is_needed(fake: FakeNode) -> None:
    there = fake.node.send(torch.ones(NUM), non_blocking=True)
    assert values(there.sum()).item() == NUM


def test_the_end_waits_for_the_thread_that_writes(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = threading.Event()

    def write(memory: PeerMemory, address: int, source: torch.Tensor, is_given_up: Callable[[], bool]) -> None:
        writes.set()
        until = time.monotonic() + PATIENCE_S
        while not is_given_up() and time.monotonic() < until:
            time.sleep(0.001)
        raise PeerMemoryError("it was given up")

    monkeypatch.setattr(PeerMemory, "write", write)
    fake.node.send(torch.ones(NUM), non_blocking=True)
    assert writes.wait(PATIENCE_S)
    fake.session.end("it is over")
    assert not [each for each in threading.enumerate() if each.name == "multiworld-write"]
    assert fake.session.dead is None
    fake.session.say_end()


def test_a_node_without_room_says_so(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> torch.Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(LargeMemory, "tensor", no_room)
    lost = fake.node.send(torch.ones(NUM)) + 1
    monkeypatch.undo()
    with pytest.raises(NodeMemoryError, match=r"(?s)send failed on node 1.*test_written_tensors\.py"):
        values(lost)


def test_a_send_ends_when_the_node_is_lost_before_it_has_room(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    monkeypatch.setattr(fake.session.loader, "write", lambda room: asked.set())
    sent = []
    thread = threading.Thread(target=lambda: sent.append(fake.node.send(torch.ones(NUM))))
    thread.start()
    assert asked.wait(PATIENCE_S)
    fake.lose()
    fake.run_timers()
    thread.join(PATIENCE_S)
    with pytest.raises(NodeDeadError):
        values(sent[0])
    assert fake.session.stream.room._held_bytes == 0


def test_what_is_read_from_a_node_that_has_ended_does_not_count(fake: FakeNode) -> None:
    there = fake.node.send(torch.ones(NUM))
    fake.node.synchronize()
    fake.there._shared.accesses.mark.erase()
    with pytest.raises(NodeDeadError, match="it has ended, or is another process"):
        values(there)
    fake.lose()


def test_without_memory_here_the_node_learns_that_nobody_reads(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    there = fake.node.send(torch.ones(NUM))
    fake.node.synchronize()

    def no_room(size_bytes: int) -> torch.UntypedStorage:
        raise RuntimeError("no room here")

    monkeypatch.setattr(large_memory, "_storage", no_room)
    monkeypatch.setattr(fake.session._fetcher._memory, "_kept", [])
    with pytest.raises(RuntimeError, match="no room here"):
        values(there)
    monkeypatch.undo()
    there.add_(1)
    assert values(there).sum() == 2 * NUM


def test_a_node_that_names_another_process_is_given_up(fake: FakeNode) -> None:
    there = fake.node.send(torch.ones(NUM))
    memory = fake.session.link.memory
    assert memory is not None
    memory.demand_mark()  # as if the bytes at its address did not follow what the master demands
    with pytest.raises(NodeDeadError, match="is another process"):
        values(there)
    fake.lose()  # a timer would abort its worlds; none runs here

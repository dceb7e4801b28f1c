"""When a node is lost, all waits for it end, operations on its tensors cost nothing, and errors are seen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import torch

from multiworld.remote import ConnectionEndedError, NodeDeadError, NodeMemoryError, RemoteOperationError
from multiworld.remote.master.node import Node
from multiworld.remote.session import failures, room
from multiworld.wire.progress.operation import Operation

from ..fake_node import FakeNode, remote_of, values


def lost_of(fake: FakeNode) -> NodeDeadError:
    with pytest.raises(NodeDeadError) as caught:
        fake.session.check_usable("a test")
    return caught.value


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_operations_on_tensors_of_a_lost_node_keep_nothing_and_wait_for_nothing(fake: FakeNode) -> None:
    x = fake.node.zeros(3)
    values(x)
    x.add_(1)
    fake.lose()
    fake.run_timers()
    for _ in range(1000):
        x = x + 1
    queue = fake.session.stream.queue
    assert (len(queue.waiting), len(queue._sent), len(queue._freed), fake.world.timers) == (0, 1, 0, [])
    with pytest.raises(NodeDeadError, match=r"aten\.add_\.Tensor at .*test_losing\.py") as caught:
        values(x)
    assert (caught.value.operation, caught.value.node, caught.value.reason) == (
        "fetch",
        1,
        "the connection broke: killed",
    )
    assert caught.value.line.endswith("in values")


def test_a_tensor_of_an_earlier_generation_beside_one_of_the_next_names_the_loss(fake: FakeNode) -> None:
    old = fake.node.zeros(3)
    fake.lose()
    with FakeNode() as replacement:
        new = replacement.node.ones(3)
        for call in (lambda: new + old, lambda: old + new, lambda: new.copy_(old), lambda: torch.cat([new, old])):
            with pytest.raises(NodeDeadError, match=r"needed at .*test_losing\.py"):
                call()
        assert values(new).tolist() == [1, 1, 1]


def test_one_world_that_breaks_takes_the_other_with_it(fake: FakeNode) -> None:
    fake.bulk.lose("cut")
    fake.run_timers()
    assert fake.world.error is not None
    fake.there._world.lose("gone")  # type: ignore[attr-defined]
    assert lost_of(fake).reason == "the connection broke: cut"


@pytest.mark.sources
def test_fetches_that_wait_in_threads_and_coroutines_end_with_the_node() -> None:
    fake = FakeNode()
    x = fake.node.zeros(3)
    release = threading.Event()
    fake.there._executor.execute = lambda batch: release.wait(10)  # type: ignore[assignment]

    async def fetched() -> None:
        await x.fetched()

    waits = [in_thread(lambda: values(x)), in_thread(lambda: asyncio.run(fetched())), in_thread(fake.node.synchronize)]
    while fake.sync_points.total < len(waits):
        threading.Event().wait(0.001)
    release.set()
    fake.lose()
    for thread, errors in waits:
        thread.join(10)
        assert [type(error) for error in errors] == [NodeDeadError]


@pytest.mark.sources
def test_a_wait_for_room_ends_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_UNCONFIRMED", 200)
    fake = FakeNode()
    release = threading.Event()
    fake.there._executor.execute = lambda batch: release.wait(10)  # type: ignore[assignment]
    x = fake.node.zeros(3)

    def add_often() -> None:
        for _ in range(1000):
            x.add_(1)

    thread, errors = in_thread(add_often)
    while not fake.session.stream.room.num_waits:
        threading.Event().wait(0.001)
    release.set()
    fake.lose()
    thread.join(10)
    assert not thread.is_alive()
    assert errors == []


def test_bytes_of_a_large_tensor_count_until_it_is_sent(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_UNCONFIRMED_BYTES", 300_000)
    sending: Operation[None] = Operation()
    monkeypatch.setattr(fake.bulk, "start_send_tensors", lambda *_: sending)
    assert not fake.session.stream.room.is_behind(0)
    fake.node.send(torch.zeros(100_000), non_blocking=True)
    assert fake.session.stream.room.is_behind(0)
    sending.succeed(None)
    assert not fake.session.stream.room.is_behind(0)


def test_a_batch_with_much_in_it_is_confirmed_at_once(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_UNCONFIRMED_BYTES", 30_000)
    for _ in range(20):  # a master that waits for room sends nothing more, so it must hear of it without asking
        fake.node.send(torch.zeros(5000))
    fake.session.flush()
    assert not fake.session.stream.room.is_behind(0)


def test_errors_that_nobody_saw_are_known_at_the_end(fake: FakeNode) -> None:
    seen, unseen = (fake.node.zeros(3).index_select(0, fake.node.send(torch.tensor([number]))) for number in (8, 9))
    with pytest.raises(RemoteOperationError, match="index"):
        values(seen)
    fake.node.synchronize()
    assert unseen.shape == (1,)
    assert [str(error).count("test_losing.py") for error in fake.session.unseen_errors()] == [1]
    fake.node.zeros(3)
    fake.lose()
    failure, death = fake.session.unseen_errors()
    assert (type(failure), type(death)) == (RemoteOperationError, NodeDeadError)
    assert "aten.zeros.default" in str(death)


def test_a_node_that_is_lost_after_all_was_confirmed_is_no_error_at_the_end(fake: FakeNode) -> None:
    values(fake.node.zeros(3))
    fake.lose()
    assert fake.session.unseen_errors() == []


def test_the_failures_that_are_kept_are_bounded(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_FAILURES", 10)
    index = fake.node.send(torch.tensor([9]))
    for _ in range(25):
        last = fake.node.zeros(3).index_select(0, index)
    fake.node.synchronize()
    assert (fake.session.stream.failures.total, len(fake.session.stream.failures.unseen)) == (25, 10)
    with pytest.raises(RemoteOperationError, match=r"test_losing\.py"):
        values(last)


def test_use_after_the_end_names_the_end(node: Node, fake: FakeNode) -> None:
    x = node.zeros(3)
    fake.close()
    with pytest.raises(ConnectionEndedError, match="the test is over"):
        values(x)


def test_nothing_is_issued_after_the_end(node: Node, fake: FakeNode) -> None:
    """An error that comes with the next wait only would be one of another line."""
    x = node.zeros(3)
    fake.close()
    for use in (lambda: x + 1, lambda: x.add_(1), lambda: torch.nonzero(x), lambda: x[0]):
        with pytest.raises(ConnectionEndedError, match="the test is over"):
            use()


def test_nothing_is_issued_in_a_forked_child(node: Node, fake: FakeNode) -> None:
    x = node.zeros(3)
    append = fake.session.stream.queue.append
    fake.session.forked("this process was forked")
    with pytest.raises(ConnectionEndedError, match="this process was forked"):
        x + 1
    fake.session._life.ended = None  # the test itself goes on
    fake.session.stream.queue.append = append
    assert values(x).tolist() == [0] * 3


def test_a_large_tensor_without_room_on_the_node_ends_the_send_and_is_told_where_it_is_needed(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that waits until its tensor is taken must not wait for ever."""
    monkeypatch.setattr(fake.bulk, "start_send_tensors", lambda *_: Operation())
    monkeypatch.setattr(torch, "empty", refuse_large(torch.empty))
    x = fake.node.send(torch.zeros(100_000))
    y = x + 1
    with pytest.raises(NodeMemoryError, match=r"(?s)send failed on node 1.*test_losing\.py"):
        values(y)


def refuse_large(empty: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(size: int, **options: torch.dtype) -> torch.Tensor:
        if size == 100_000:
            raise MemoryError("no room")
        return empty(size, **options)

    return make


def test_a_failure_that_a_coroutine_waits_for_is_no_loss_of_the_node(fake: FakeNode) -> None:
    lost = fake.node.zeros(3).index_select(0, fake.node.send(torch.tensor([9])))
    with pytest.raises(RemoteOperationError, match="index"):
        asyncio.run(remote_of(lost).fetched())
    assert values(fake.node.ones(1)).tolist() == [1]

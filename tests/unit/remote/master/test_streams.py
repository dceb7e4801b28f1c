"""``nodes[1].stream()`` and its events: order among streams, lazy errors across them, and clear ends."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from multiworld import remote
from multiworld.remote import NodeDeadError, PlaceMismatchError, RemoteOperationError
from multiworld.remote.master.node import Node

from ..fake_node import FakeNode, values


class Held:
    """Holds the first stream of a node: it executes what comes only when ``release`` is called."""

    def __init__(self, fake: FakeNode) -> None:
        executor = fake.there._executor
        execute, self._may = executor.execute, threading.Event()

        def held(batch: memoryview) -> None:
            assert self._may.wait(30)
            execute(batch)

        executor.execute = held  # type: ignore[method-assign]

    def release(self) -> None:
        self._may.set()


@pytest.fixture
def held(fake: FakeNode) -> Held:
    return Held(fake)


def test_operations_of_a_thread_go_to_its_stream_and_back_to_the_default_one(fake: FakeNode) -> None:
    node, stream, other = fake.node, fake.node.stream(), fake.node.stream()
    assert node.current_stream() == node.default_stream
    with stream:
        assert node.current_stream() is stream
        with other:
            assert node.current_stream() is other
        assert node.current_stream() is stream
        x = node.ones(3)
        x += 1
        assert values(x).tolist() == [2, 2, 2]
    assert fake.session.stream.queue.end == 0


def test_another_thread_stays_on_its_own_stream(fake: FakeNode) -> None:
    seen = []
    with fake.node.stream():
        thread = threading.Thread(target=lambda: seen.append(fake.node.current_stream()))
        thread.start()
        thread.join()
    assert seen == [fake.node.default_stream]


def test_a_stream_goes_on_while_another_one_is_busy(fake: FakeNode, held: Held) -> None:
    fake.node.zeros(3)
    fake.session.flush()
    with fake.node.stream():
        assert values(fake.node.ones(3) + 1).tolist() == [2, 2, 2]
    held.release()


def test_what_one_stream_makes_another_waits_for_without_an_event(fake: FakeNode, held: Held) -> None:
    made = fake.node.ones(3)
    with fake.node.stream() as stream:
        needs = made + 1
        event = stream.record_event()
    fake.session.flush()
    assert not event.query()
    held.release()
    assert values(needs).tolist() == [2, 2, 2]
    event.synchronize()
    assert event.query()


def test_what_a_stream_writes_another_one_sees_behind_an_event(fake: FakeNode, held: Held) -> None:
    x = fake.node.zeros(3)
    for _ in range(50):
        x.add_(1)
    written = fake.node.default_stream.record_event()
    stream = fake.node.stream()
    stream.wait_event(written)
    with stream:
        x.mul_(2)
    assert not written.query()
    assert not stream.query()
    held.release()
    fake.node.default_stream.wait_stream(stream)
    assert values(x).tolist() == [100, 100, 100]
    stream.synchronize()  # the news that it was executed may come behind its effects
    assert stream.query()


def test_a_wait_is_for_the_record_before_it(fake: FakeNode, held: Held) -> None:
    """An event that is recorded again, on a stream that is late, does not hold back who waited for the first one."""
    stream = fake.node.stream()
    with stream:
        x = fake.node.ones(3)
    event = stream.record()
    third = fake.node.stream()
    third.wait(event)
    event.record(fake.node.default_stream)  # which is held
    with third:
        assert values(x + 1).tolist() == [2, 2, 2]
    assert not event.query()
    held.release()
    event.synchronize()


def test_an_event_that_was_never_recorded_is_not_waited_for(fake: FakeNode) -> None:
    event = remote.Event()
    assert event.query()
    event.synchronize()
    fake.node.stream().wait_event(event)
    assert repr(event) == "<Event: not recorded>"


def test_a_tensor_that_is_given_up_stays_until_all_streams_have_used_it(fake: FakeNode, held: Held) -> None:
    x = fake.node.ones(3)
    stream = fake.node.stream()
    with stream:
        y = x + 1
    del x
    with fake.node.stream():
        fake.node.ones(1)
    fake.session.flush()
    held.release()
    assert values(y).tolist() == [2, 2, 2]
    del y
    gc.collect()
    fake.node.synchronize()
    fake.node.synchronize()
    assert fake.num_tensors == 0


def test_a_failure_on_one_stream_reaches_what_needs_it_on_another_with_its_line(fake: FakeNode) -> None:
    one, other = fake.node.stream(), fake.node.stream()
    with one:
        failed = fake.node.zeros(3).index_select(0, fake.node.send(torch.tensor([9])))
    with other:
        kept = fake.node.ones(3)
        with pytest.raises(RemoteOperationError, match=r"(?s)index_select.*issued at .*test_streams\.py"):
            values(failed + kept)
        assert values(kept).tolist() == [1, 1, 1]
    assert fake.session.unseen_errors() == []


def test_a_large_tensor_is_used_on_several_streams(fake: FakeNode) -> None:
    here = torch.arange(100_000.0)
    with fake.node.stream():
        there = fake.node.send(here)
    sums = []
    for _ in range(3):
        with fake.node.stream():
            sums.append(there.sum())
    assert [value.item() for value in sums] == [here.sum().item()] * 3


def test_synchronize_waits_for_all_streams_of_the_node(fake: FakeNode) -> None:
    streams = [fake.node.stream() for _ in range(3)]
    events = []
    for stream in streams:
        with stream:
            fake.node.ones(3)
        events.append(stream.record_event())
    fake.node.synchronize()
    assert all(event.query() for event in events)
    assert all(stream.query() for stream in streams)
    streams[0].synchronize()
    assert fake.sync_points.total == 2


def test_synchronize_asks_only_streams_that_have_something_left_and_the_node_in_any_case(fake: FakeNode) -> None:
    first, second = fake.node.stream(), fake.node.stream()
    fake.node.synchronize()

    def num_asked() -> int:
        before = fake.session.requests.next()
        fake.node.synchronize()
        return fake.session.requests.next() - before - 1

    assert num_asked() == 1
    for stream in (first, second):
        with stream:
            kept = fake.node.ones(3)
    assert num_asked() == 2
    assert num_asked() == 1
    assert kept.shape == (3,)
    fake.there._world.abort()
    with pytest.raises(NodeDeadError):
        fake.node.synchronize()


def test_a_closed_stream_executes_what_it_has_and_takes_nothing_more(fake: FakeNode) -> None:
    stream = fake.node.stream()
    with stream:
        x = fake.node.ones(3)
    stream.close()
    stream.close()
    assert values(x + 1).tolist() == [2, 2, 2]
    fake.node.synchronize()
    assert stream.query()
    for use in (stream.__enter__, stream.record_event, lambda: stream.wait_event(fake.node.stream().record())):
        with pytest.raises(RuntimeError, match=r"was closed: make another one"):
            use()
    with pytest.raises(ValueError, match="default stream"):
        fake.node.default_stream.close()


def test_streams_that_are_over_leave_nothing_but_their_counts(fake: FakeNode) -> None:
    for number in range(20):
        with fake.node.stream() as stream:
            fake.node.ones(3)
        stream.close()
        fake.node.synchronize()
        assert len(fake.session.streams.all()) == 2, number
    assert fake.session.streams.ended.num_commands >= 19 * 3
    assert len(fake.there._stream_threads) <= 2  # the one before may be about to end
    fake.there.join_streams()
    assert fake.num_tensors == 0


def test_closing_the_stream_that_is_used_ends_its_use(fake: FakeNode) -> None:
    x = fake.node.ones(3)
    with fake.node.stream() as stream:
        stream.close()
        with pytest.raises(RuntimeError, match="after its close"):
            x + 1
    assert values(x + 1).tolist() == [2, 2, 2]


def test_a_stream_that_nobody_refers_to_ends_on_the_node(fake: FakeNode) -> None:
    with fake.node.stream():
        x = fake.node.ones(3)
    gc.collect()
    fake.run_timers()
    assert values(x).tolist() == [1, 1, 1]
    (thread,) = fake.there._stream_threads
    thread.join(10)
    assert not thread.is_alive()


def test_events_order_streams_of_one_node_only(fake: FakeNode) -> None:
    with FakeNode(2) as other:
        event = other.node.default_stream.record_event()
        with pytest.raises(
            PlaceMismatchError, match=r"node 1, another on node 2\. Events order the streams of one node"
        ):
            fake.node.default_stream.wait_event(event)


def test_streams_and_events_of_a_lost_node_name_the_loss(fake: FakeNode, held: Held) -> None:
    stream = fake.node.stream()
    event = fake.node.default_stream.record_event()
    held.release()
    fake.lose()
    with FakeNode() as replacement:
        for use in (
            stream.__enter__,
            stream.synchronize,
            stream.query,
            stream.record_event,
            lambda: replacement.node.stream().wait_event(event),
            event.synchronize,
            event.query,
        ):
            with pytest.raises(NodeDeadError, match="killed"):
                use()
    stream.close()


def test_waits_of_the_master_for_an_event_end_with_the_node(fake: FakeNode, held: Held) -> None:
    event = fake.node.default_stream.record_event()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            event.synchronize()
        except NodeDeadError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not fake.sync_points.total:
        threading.Event().wait(0.001)
    for world in (fake.world, fake.bulk):
        world.lose("killed")
        world.peer.lose("killed")
    thread.join(10)
    held.release()
    assert [type(error) for error in caught] == [NodeDeadError]


def test_a_bad_record_on_any_stream_ends_the_session(node: Node) -> None:
    fake = FakeNode()
    stream = fake.node.stream()
    with stream:
        fake.session.emit(b"\x02\x00\x00\x00\xff\xff\xff\xff", "nonsense")
    fake.session.flush()
    fake._thread.join(10)
    assert "a record ends at" in str(fake.failure)


def test_a_step_is_captured_and_replayed_on_the_stream_that_is_used(fake: FakeNode, held: Held) -> None:
    stream = fake.node.stream()
    with stream:
        x = fake.node.ones(3)
        with remote.capture(x) as step:
            with pytest.raises(RuntimeError, match="a captured block stays on one stream"):
                fake.node.stream().__enter__()
            step.returns(x + 1)
    again = step(torch.full((3,), 4.0))  # sent on the default stream, which is held
    with stream:
        event = stream.record_event()
        assert not event.query()
        held.release()
        assert values(again).tolist() == [5, 5, 5]
    stream.close()
    with pytest.raises(remote.CaptureError, match="was closed"):
        step(x)


def test_a_recoverable_node_has_one_stream(fake: FakeNode) -> None:
    class Any:
        """A recovery, which is not asked for anything."""

    recovery = Any()
    fake.session.recovery = recovery  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="node 1 is recoverable"):
        fake.node.stream()
    fake.session.recovery = None
    fake.node.stream()
    with pytest.raises(RuntimeError, match="node 1 has streams"):
        fake.session.recovery = recovery  # type: ignore[assignment]

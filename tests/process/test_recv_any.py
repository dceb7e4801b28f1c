"""Receives from whichever rank has a message: right data and sender, turns, and nothing taken from other receives."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest
import torch

import multiworld as mw
from multiworld.channel.stream_channel.channel import StreamChannel
from multiworld.testing import scaled, wait_until
from tests.process.one_process import in_thread, worlds

pytestmark = pytest.mark.usefixtures("no_leaks")

BACKENDS = ["shm", "tcp", "gloo"]
LARGE = 200_000  # float32: waits for a receive before it travels
HUGE = 3_000_000  # and gloo moves it beside the connection


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numel", [1, LARGE, HUGE])
def test_whoever_sends_is_received_before_and_after(backend: str, numel: int) -> None:
    with worlds(3, backend) as (first, second, third):
        early = second.blocking.isend(torch.full((numel,), 1.0), 0)
        tensor = torch.empty(numel)
        assert first.blocking.recv_any(tensor, timeout_s=scaled(10)) == 1
        assert bool((tensor == 1).all())
        early.wait()
        waiting = first.blocking.irecv_any(tensor)
        third.blocking.isend(torch.full((numel,), 2.0), 0)
        assert waiting.wait(scaled(10)) == 2
        assert bool((tensor == 2).all())


def test_the_asyncio_twin() -> None:
    with worlds(3) as (first, second, _):

        async def receive() -> int:
            tensor = torch.zeros(3, 2).t()  # not contiguous
            receiving = asyncio.create_task(first.recv_any(tensor, tag=2))
            await second.send(torch.arange(6.0).reshape(2, 3), 0, tag=2)
            source = await receiving
            assert tensor.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(first.recv_any(torch.zeros(1), tag=3), 0.05)
            return source

        assert asyncio.run(receive()) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_senders_take_turns_and_keep_their_order(backend: str) -> None:
    with worlds(4, backend) as (first, *senders):
        for number in range(10):
            for sender in senders:
                sender.blocking.send(torch.tensor([sender.rank, number]), 0)
        assert wait_until(lambda: first.statistics().channel.messages_received == 30, 5)
        got = []
        for _ in range(30):
            source = first.blocking.recv_any(tensor := torch.empty(2, dtype=torch.int64), timeout_s=scaled(5))
            assert source == int(tensor[0])
            got.append((source, int(tensor[1])))
        for start in range(0, 30, 3):
            assert {source for source, _ in got[start : start + 3]} == {1, 2, 3}, got
        for sender in senders:
            assert [number for source, number in got if source == sender.rank] == list(range(10))


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_that_receive_at_once_get_different_messages(backend: str) -> None:
    count = 100
    with worlds(4, backend) as (first, *senders):

        def send(world: mw.World) -> None:
            for number in range(count):
                size = LARGE if number % 20 == 0 else 2
                world.blocking.send_tensors(torch.full((size,), float(1000 * world.rank + number)), 0, tag=size)

        def receive(size: int, times: int) -> list[tuple[int, float]]:
            got = []
            for _ in range(times):
                tensor = torch.empty(size)
                source = first.blocking.recv_any(tensor, size, timeout_s=scaled(20))
                assert bool((tensor == tensor[0]).all())
                got.append((source, float(tensor[0])))
            return got

        num_large = 3 * len(range(0, count, 20))
        receiving = [in_thread(receive, 2, (3 * count - num_large) // 3) for _ in range(3)]
        receiving.append(in_thread(receive, LARGE, num_large))
        sending = [in_thread(send, sender) for sender in senders]
        got = [entry for thread in receiving for entry in thread.result(30)]
        for thread in sending:
            thread.result()
        expected = {(rank, float(1000 * rank + number)) for rank in (1, 2, 3) for number in range(count)}
        assert set(got) == expected
        assert Counter(got).most_common(1)[0][1] == 1


def test_receives_that_name_the_sender_come_first_and_tags_stay_apart() -> None:
    with worlds(3) as (first, second, third):
        anyone = first.blocking.irecv_any(by_anyone := torch.zeros(1))
        named = first.blocking.irecv(by_name := torch.zeros(1), 1)
        other_tag = first.blocking.irecv_any(torch.zeros(1), tag=1)
        second.blocking.send(torch.tensor([1.0]), 0)
        named.wait(scaled(5))
        assert not anyone.done
        second.blocking.send(torch.tensor([2.0]), 0)
        assert anyone.wait(scaled(5)) == 1
        assert (float(by_name), float(by_anyone)) == (1.0, 2.0)
        assert not other_tag.done
        third.blocking.send(torch.tensor([3.0]), 0, tag=1)
        assert other_tag.wait(scaled(5)) == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numel", [1, LARGE])
def test_cancelled_or_late_it_leaves_the_messages_where_they_are(backend: str, numel: int) -> None:
    with worlds(3, backend) as (first, second, third):
        tensor = torch.zeros(numel)
        cancelled = first.blocking.irecv_any(tensor)
        late = first.blocking.irecv_any(tensor, timeout_s=0.05)
        assert cancelled.cancel()
        with pytest.raises(mw.OperationTimeoutError, match="recv_any in world 'w'"):
            late.wait()
        sending = [world.blocking.isend(torch.full((numel,), float(world.rank)), 0) for world in (second, third)]
        received = {first.blocking.recv_any(other := torch.empty(numel)) for _ in range(2)}
        assert received == {1, 2}
        assert float(other[0]) in (1.0, 2.0)
        for request in sending:
            request.wait(scaled(5))
        assert bool((tensor == 0).all())
        assert first.statistics().channel.receives_waiting == 0


def test_a_message_that_loses_its_receive_goes_to_one_that_takes_any() -> None:
    """The receive that named the sender had met the message when it was cancelled."""
    with worlds(2) as (first, second):
        stream = second.blocking.isend
        named = first.blocking.irecv(torch.zeros(HUGE), 1)
        sending = stream(torch.ones(HUGE), 0)
        anyone = first.blocking.irecv_any(tensor := torch.zeros(HUGE))
        named.cancel()
        if named.error is not None and isinstance(named.error, mw.RequestCancelledError):
            assert anyone.wait(scaled(10)) == 1
            assert bool((tensor == 1).all())
        else:  # it was over before
            anyone.cancel()
        sending.wait(scaled(10))


def test_a_message_that_does_not_fit_stays() -> None:
    with worlds(3) as (first, second, third):
        second.blocking.send(torch.ones(3), 0)
        with pytest.raises(mw.TensorMismatchError, match=r"rank 1 sent .*3.*but this receive offers"):
            first.blocking.recv_any(torch.zeros(2), timeout_s=scaled(5))
        waiting = first.blocking.irecv_any(torch.zeros(2), tag=1)
        fitting = first.blocking.irecv_any(torch.zeros(3), tag=1)
        third.blocking.send(torch.ones(3), 0, tag=1)
        with pytest.raises(mw.TensorMismatchError):
            waiting.wait(scaled(5))
        assert fitting.wait(scaled(5)) == 2
        received = first.blocking.recv_tensors(1, timeout_s=scaled(5))
        assert isinstance(received, torch.Tensor)
        assert received.tolist() == [1.0] * 3


def test_what_a_rank_sent_before_it_left_is_received_and_then_the_error() -> None:
    with worlds(3) as (first, second, _):
        second.blocking.send(torch.ones(1), 0)
        second.blocking.leave()
        first.blocking.wait_broken()
        tensor = torch.zeros(1)
        assert first.blocking.recv_any(tensor) == 1
        assert float(tensor) == 1.0
        with pytest.raises(mw.PeerLeftError):
            first.blocking.recv_any(tensor)


def test_breaking_the_world_fails_it() -> None:
    with worlds(3) as (first, second, _):
        waiting = first.blocking.irecv_any(torch.zeros(1))
        blocked = in_thread(first.blocking.recv_any, torch.zeros(1), 1)
        second.abort()
        for raises in (waiting.wait, blocked.result, lambda: first.blocking.recv_any(torch.zeros(1))):
            with pytest.raises(mw.WorldBrokenError):
                raises()


def test_bad_arguments() -> None:
    with worlds(1) as (alone,), pytest.raises(ValueError, match=r"world 'w' has no other rank to receive from"):
        alone.blocking.recv_any(torch.zeros(1))
    with worlds(2) as (first, _):
        with pytest.raises(TypeError, match=r"tensor must be a tensor, got list"):
            first.blocking.recv_any([1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"tag must be an int, got '1'"):
            first.blocking.recv_any(torch.zeros(1), "1")  # type: ignore[arg-type]


def test_a_channel_that_cannot_says_so() -> None:
    with worlds(2) as (first, _):
        channel = first.channel
        assert channel is not None
        with pytest.raises(NotImplementedError, match=r"backend 'tcp' cannot receive from any rank: name the rank"):
            mw.DataChannel.recv_any(channel, torch.zeros(1), 0)


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("source", ["named", "any"])
def test_a_message_that_has_come_is_not_lost_to_a_cancel_in_that_very_moment(layout: str, source: str) -> None:
    """The thread that received it has not told anybody yet when the receive is cancelled."""
    with worlds(2) as (first, second):
        second.blocking.send(torch.arange(4.0).reshape(2, 2), 0)
        assert wait_until(lambda: first.statistics().channel.messages_received == 1, 5)
        channel = first.channel
        assert isinstance(channel, StreamChannel)
        connection = channel._mesh.stream(1).connection
        tensor = torch.zeros(2, 2) if layout == "contiguous" else torch.zeros(2, 2).t()
        slow, go_on = threading.Event(), threading.Event()
        started: list[mw.Request[Any]] = []

        def dawdle() -> None:
            slow.set()
            go_on.wait(scaled(5))

        def receive() -> None:
            connection.defer(dawdle)
            start = first.blocking
            started.append(start.irecv(tensor, 1) if source == "named" else start.irecv_any(tensor))

        receiving = in_thread(connection.run, receive)
        assert slow.wait(scaled(5))
        cancelled = started[0].cancel()
        go_on.set()
        receiving.result()
        assert not cancelled
        assert started[0].wait(scaled(5)) == (None if source == "named" else 1)
        assert tensor.tolist() == [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_lost_or_doubled_when_receives_are_given_up_all_the_time(backend: str) -> None:
    count, seed, sizes = 120, 7, (2, 3000, LARGE)
    with worlds(4, backend) as (first, *senders):
        expected = {(rank, number) for rank in (1, 2, 3) for number in range(count)}
        got: list[tuple[int, int]] = []
        over = threading.Event()

        def send(world: mw.World) -> None:
            chance = random.Random(seed + world.rank)
            for number in range(count):
                size = chance.choices(sizes, (20, 4, 1))[0]
                world.blocking.send(torch.full((size,), float(number)), 0, tag=size)

        def receive(number: int) -> None:
            chance = random.Random(seed * 10 + number)
            while not over.is_set():
                size = chance.choice(sizes)
                tensor = torch.full((size,), -1.0)
                try:
                    source = receive_or_give_up(chance, tensor, size)
                except (mw.OperationTimeoutError, mw.RequestCancelledError):
                    assert float(tensor.min()) == -1.0 or size > 2  # what was moving may have come in part
                    continue
                assert bool((tensor == tensor[0]).all())
                got.append((source, int(tensor[0])))
                if len(got) == len(expected):
                    over.set()

        def receive_or_give_up(chance: random.Random, tensor: torch.Tensor, tag: int) -> int:
            how, timeout_s = chance.random(), chance.choice([0.0005, 0.005, 0.05])
            if how < 0.6:
                return first.blocking.recv_any(tensor, tag, timeout_s)
            if how < 0.8:
                source = chance.choice([1, 2, 3])
                first.blocking.recv(tensor, source, tag, timeout_s)
                return source
            request = first.blocking.irecv_any(tensor, tag)
            request.cancel()
            return request.wait()

        receiving = [in_thread(receive, number) for number in range(4)]
        sending = [in_thread(send, sender) for sender in senders]
        for thread in sending:
            thread.result(20)
        complete = over.wait(scaled(20))
        over.set()
        for thread in receiving:
            thread.result()
        assert complete, f"seed {seed}: lost {sorted(expected - set(got))}"
        assert set(got) == expected

"""``World.deliver``: every message of a peer is handed to a callback, until the world or the callback ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import torch

from multiworld.channel.base import Payload
from multiworld.channel.payload.small_message import Received, SmallMessage
from multiworld.errors import WorldBrokenError, WorldClosedError
from multiworld.testing import scaled

from .one_process import in_thread, worlds

SIZES = (0, 3, 1000, 20_000, 200_000, 3_000_000)  # through frames, slots, the ring and the lane


async def until(holds: Callable[[], bool]) -> None:
    async def look() -> None:
        while not holds():  # noqa: ASYNC110 - nobody tells this test
            await asyncio.sleep(0.001)

    await asyncio.wait_for(look(), scaled(20))


@pytest.mark.parametrize("backend", ["tcp", "shm", "gloo"])
def test_all_that_a_peer_sends_is_delivered_in_order_until_the_delivery_is_stopped(backend: str) -> None:
    with worlds(2, backend) as (sender, receiver):
        sent = [torch.full((size,), number % 100, dtype=torch.uint8) for number, size in enumerate(SIZES * 5)]

        def send() -> None:
            for tensor in sent:
                sender.blocking.send_tensors({"x": tensor}, 1, timeout_s=10)

        async def listen() -> list[Payload]:
            came: list[Payload] = []
            ended: list[Exception] = []
            delivery = receiver.deliver(0, came.append, ended.append)
            sending = in_thread(send)
            await until(lambda: len(came) == len(sent))
            sending.result()
            delivery.stop()
            sending = in_thread(lambda: sender.blocking.send_tensors(torch.ones(3), 1, timeout_s=10))
            kept = await receiver.recv_tensors(0, timeout_s=10)
            sending.result()
            assert isinstance(kept, torch.Tensor)
            assert kept.tolist() == [1, 1, 1], "it waited for whoever receives next"
            assert len(came) == len(sent)
            assert ended == []
            return came

        for payload, tensor in zip(asyncio.run(listen()), sent, strict=True):
            assert isinstance(payload, dict)
            assert torch.equal(payload["x"], tensor)


def content(received: Received) -> tuple[str, int, set[int]]:
    """Return what it came as, how many bytes, and which values they have."""
    if isinstance(received, SmallMessage):
        return "bytes", len(received.memory), set(received.memory)
    kind = "alone" if isinstance(received, torch.Tensor) else "named"
    tensor = received["x"] if isinstance(received, dict) else received
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.uint8
    return kind, len(tensor), set(tensor.tolist())


@pytest.mark.parametrize("backend", ["tcp", "shm", "gloo"])
def test_bytes_and_tensors_come_in_the_order_in_which_they_were_sent(backend: str) -> None:
    sizes = [size for size in SIZES for _ in range(7)]
    sizes += [3, 200_000, 1000, 3, 3, 0, 20_000, 3] * 5
    with worlds(2, backend) as (sender, receiver):
        were_bytes: list[bool] = []
        came: list[tuple[str, int, set[int]]] = []

        def send() -> None:
            for number, size in enumerate(sizes):
                while number % 3 and len(came) < number:  # some find their receive, and some do not
                    time.sleep(0.0005)
                packed = bytearray([number % 100]) * size
                is_named = number % 5 == 4
                were_bytes.append(not is_named and sender.send_bytes(packed, 1, 0))
                if not were_bytes[-1]:
                    tensor = torch.full((size,), number % 100, dtype=torch.uint8)
                    sender.blocking.send_tensors({"x": tensor} if is_named else tensor, 1, timeout_s=10)
                packed[:] = b"?" * size  # it is the sender's again

        async def listen() -> None:
            ended: list[Exception] = []
            delivery = receiver.deliver(0, lambda received: came.append(content(received)), ended.append, as_bytes=True)
            sending = in_thread(send)
            await until(lambda: len(came) == len(sizes))
            sending.result()
            delivery.stop()
            assert ended == []

        asyncio.run(listen())
        for number, (size, (kind, length, values)) in enumerate(zip(sizes, came, strict=True)):
            assert (kind == "named") == (number % 5 == 4)
            assert (length, values) == (size, {number % 100} if size else set())
        assert sum(were_bytes) > 10
        if backend != "gloo":  # whose messages all go the usual way
            assert sum(kind == "bytes" for kind, _, _ in came) > 10
        assert any(size > 1_000_000 for size in sizes)


@pytest.mark.parametrize("backend", ["tcp", "shm"])
def test_bytes_that_nobody_was_told_of_wait_for_the_next_receive_as_a_tensor(backend: str) -> None:
    with worlds(2, backend) as (sender, receiver):

        async def listen() -> None:
            came: list[bytes] = []
            ended: list[Exception] = []

            def take(received: Received) -> None:
                assert isinstance(received, SmallMessage)
                came.append(bytes(received.memory))
                if len(came) == 4:
                    delivery.stop()

            delivery = receiver.deliver(0, take, ended.append, as_bytes=True)
            for number in range(3):  # alike, so that the next one is prepared for
                assert sender.send_bytes(bytearray([number]) * 100, 1, 0)
                await until(lambda number=number: len(came) == number + 1)  # type: ignore[misc]
                await asyncio.sleep(0.005)
            for number in (3, 4, 5):
                assert sender.send_bytes(bytearray([number]) * 100, 1, 0)
            await until(lambda: len(came) == 4)
            for number in (4, 5):
                kept = await receiver.recv_tensors(0, timeout_s=10)
                assert isinstance(kept, torch.Tensor)
                assert kept.tolist() == [number] * 100
            assert came == [bytes([number]) * 100 for number in range(4)]
            assert ended == []

        asyncio.run(listen())


def test_bytes_for_a_world_that_is_broken_or_closed_are_refused_with_its_error() -> None:
    with worlds(2) as (sender, receiver):
        assert sender.send_bytes(bytearray(10), 1, 0)
        receiver.abort()

        def is_refused() -> bool:
            try:
                sender.send_bytes(bytearray(10), 1, 0)
            except WorldBrokenError:
                return True
            return False

        asyncio.run(until(is_refused))
        with pytest.raises(WorldClosedError):
            receiver.send_bytes(bytearray(10), 0, 0)


def test_a_world_that_breaks_ends_the_delivery_with_its_error() -> None:
    with worlds(2) as (sender, receiver):

        async def listen() -> list[Exception]:
            ended: list[Exception] = []
            receiver.deliver(0, lambda _: None, ended.append)
            sender.abort()
            await until(lambda: bool(ended))
            return ended

        (error,) = asyncio.run(listen())
        assert isinstance(error, WorldBrokenError)


def test_a_callback_that_raises_ends_the_delivery_and_gets_nothing_more() -> None:
    with worlds(2) as (sender, receiver):

        def refuse(_: Payload) -> None:
            raise KeyError("no")

        async def listen() -> list[Exception]:
            ended: list[Exception] = []
            receiver.deliver(0, refuse, ended.append)
            for _ in range(2):
                await sender.send_tensors(torch.ones(1), 1, timeout_s=10)
            await until(lambda: bool(ended))
            assert await receiver.recv_tensors(0, timeout_s=10) is not None, "the second one waits"
            return ended

        (error,) = asyncio.run(listen())
        assert isinstance(error, KeyError)

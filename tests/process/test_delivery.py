"""``World.deliver``: every message of a peer is handed to a callback, until the world or the callback ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import torch

from multiworld.channel.base import Payload
from multiworld.errors import WorldBrokenError
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

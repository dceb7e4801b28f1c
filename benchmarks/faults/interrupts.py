"""A program for workers: interrupted (SIGINT) at random moments amid quick receives, it must always come to its end."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable

import torch

from multiworld import MultiworldError, World, WorldManager
from multiworld.testing.worker import report

__all__ = ["APIS", "receive_until_interrupted"]

GIVE_UP_S = 3.0  # an interrupt that comes while Python calls a weak reference's callback is swallowed by that
FIRST_S, LAST_S = 0.001, 0.006


def receive_until_interrupted(api: str, trials: int, seed: int) -> None:
    """Form a world between two managers, receive, be interrupted, close; report ``interrupted`` with ``close_s``."""
    chance = random.Random(seed)
    loop = asyncio.new_event_loop()
    for _ in range(trials):
        managers = [WorldManager(), WorldManager()]
        source, target = loop.run_until_complete(_form(managers))
        feeding = threading.Thread(target=_feed, args=(source,), daemon=True)
        feeding.start()
        firing = threading.Thread(target=_fire, args=(threading.get_ident(), chance.uniform(FIRST_S, LAST_S)))
        was_raised = False
        try:
            firing.start()
            APIS[api](loop, target)
        except KeyboardInterrupt:
            was_raised = True
        at = time.monotonic()
        for manager in reversed(managers):
            manager.on_exit()
        report("interrupted", close_s=time.monotonic() - at, was_raised=was_raised)
        feeding.join()
        firing.join()


async def _form(managers: list[WorldManager]) -> list[World]:
    url = managers[0].serve_store("tcp://127.0.0.1:0")
    return list(await asyncio.gather(*(manager.join("w", rank, 2, url) for rank, manager in enumerate(managers))))


def _feed(world: World) -> None:
    tensor = torch.ones(1)
    try:
        while True:
            world.blocking.send(tensor, 1)
    except MultiworldError:
        return  # the end of the trial


def _fire(thread: int, delay_s: float) -> None:
    time.sleep(delay_s)
    signal.pthread_kill(thread, signal.SIGINT)


def _receive_blocking(loop: asyncio.AbstractEventLoop, world: World) -> None:
    tensor, begin = torch.zeros(1), time.monotonic()
    while time.monotonic() - begin < GIVE_UP_S:
        world.blocking.recv(tensor, 0)


def _receive_asyncio(loop: asyncio.AbstractEventLoop, world: World) -> None:
    async def receive() -> None:
        tensor, begin = torch.zeros(1), time.monotonic()
        while time.monotonic() - begin < GIVE_UP_S:
            await world.recv(tensor, 0)

    task = loop.create_task(receive())
    try:
        loop.run_until_complete(task)
    finally:
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))


APIS: dict[str, Callable[[asyncio.AbstractEventLoop, World], None]] = {
    "asyncio": _receive_asyncio,
    "blocking": _receive_blocking,
}

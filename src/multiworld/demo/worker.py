"""One worker process of the main job: waits warm for its role, plays it, and tells what happens to its worlds.

``python -m multiworld.demo.worker`` reads one ``Role`` from stdin and writes ``Notice`` lines to stdout. The end of
stdin, which comes at once when the main job ends for whatever reason, ends the worker.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import torch
from torch import nn

import multiworld as mw

from .model import build_model, stage_of
from .pipeline import REPLICAS, Rhombus, run_joiner, run_replica, run_splitter
from .protocol import READY, Notice, Role

__all__ = ["main", "notice_of"]

PR_SET_PDEATHSIG = 1  # of prctl(2)


def main() -> int:
    """Run until the role is over: 0 after a regular end, 1 when a world broke that this role cannot do without."""
    _die_with_parent()
    notices = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Gloo prints to the C library's stdout; that belongs to the log
    torch.set_num_threads(1)
    try:
        asyncio.run(_work(lambda notice: print(notice.to_line(), file=notices)))
    except mw.MultiworldError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _die_with_parent() -> None:
    """Have the kernel kill this process when the main job is killed: one that is stopped would not see that."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def notice_of(event: mw.Event) -> Notice:
    """Return an event of a world as a notice, stamped now."""
    error = event.error if isinstance(event, mw.WorldBroken) else None
    return Notice(
        kind=type(event).__name__,
        at=time.monotonic(),
        world=event.world,
        generation=event.generation,
        error="" if error is None else type(error).__name__,
        text="" if error is None else str(error),
    )


async def _work(tell: Callable[[Notice], None]) -> None:
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    tell(Notice(kind=READY, at=time.monotonic()))
    line = await orders.readline()
    if not line:  # a spare that was not needed
        return
    playing = asyncio.ensure_future(_play(Role.from_line(line), tell))
    dismissed = asyncio.ensure_future(orders.read())
    try:
        await asyncio.wait({playing, dismissed}, return_when=asyncio.FIRST_COMPLETED)
        if playing.done():
            playing.result()
    finally:
        playing.cancel()
        dismissed.cancel()
        await asyncio.gather(playing, dismissed, return_exceptions=True)


async def _play(role: Role, tell: Callable[[Notice], None]) -> None:
    stage = _load_stage(role)
    rhombus = Rhombus(store=role.store, backend=role.backend)
    manager = mw.WorldManager(job="demo", token=role.token, lease_s=role.lease_s)
    telling = asyncio.ensure_future(_tell_events(manager.events(), tell))
    try:
        async with manager:
            if role.name == "a":
                await run_splitter(manager, rhombus, stage)
            elif role.name == "c":
                await run_joiner(manager, rhombus, stage)
            else:
                await run_replica(manager, rhombus, stage, role.name, role.number)
    finally:
        await telling  # the events end with the manager; the last one may be why this role is over


def _load_stage(role: Role) -> nn.Module:
    model = build_model(seed=0)
    weights: dict[str, Any] = torch.load(role.weights, weights_only=True)
    model.load_state_dict(weights)
    return stage_of(model, "b" if role.name in REPLICAS else role.name).eval()


async def _tell_events(events: AsyncIterator[mw.Event], tell: Callable[[Notice], None]) -> None:
    async for event in events:
        tell(notice_of(event))


if __name__ == "__main__":
    sys.exit(main())

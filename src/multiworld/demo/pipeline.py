"""The rhombus front → A → {B1, B2} → C → front, one world per edge: what A, B and C do, on the public API only.

Each edge is a world of two: the upstream process is rank 0, the downstream one rank 1. A message is a dict of tensors:

    front → A     request int64 [], answered int64 [n], values float32 [batch, 1, 8, 8]
    A → B         request int64 [], attempt int64 [] (1, or more for a replay), values (activations)
    B → C         the same, and worker int64 [] (the number of the B process)
    C → front     the same, values float32 [batch, 10] (logits)

A replica of B may end, hang or be replaced at any moment. Then just its two worlds break: A replays on the other
replica what the front has not acknowledged, A and C form the two worlds again as soon as a replacement joins, and the
front drops second answers. Nothing else takes notice.

A forward pass runs on the event loop of its process: the worlds make progress on a thread of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import multiworld as mw

from .ledger import Assignment, ReplicaLedger

__all__ = [
    "DOWNSTREAM",
    "REPLICAS",
    "UPSTREAM",
    "Rhombus",
    "edge",
    "receive",
    "run_joiner",
    "run_replica",
    "run_splitter",
]

REPLICAS = ("b1", "b2")
UPSTREAM, DOWNSTREAM = 0, 1


def edge(upstream: str, downstream: str) -> str:
    """Return the name of the world between two processes."""
    return f"{upstream}-{downstream}"


@dataclass(frozen=True, kw_only=True)
class Rhombus:
    """Where and how the worlds of one pipeline are formed."""

    store: str
    backend: str = "auto"
    join_timeout_s: float = 60.0

    async def join(self, manager: mw.WorldManager, upstream: str, downstream: str, *, rank: int) -> mw.World:
        """Form the world of one edge together with the process at its other end."""
        return await manager.join(
            edge(upstream, downstream),
            rank=rank,
            world_size=2,
            store=self.store,
            backend=self.backend,
            timeout_s=self.join_timeout_s,
        )


async def run_splitter(manager: mw.WorldManager, rhombus: Rhombus, stage: nn.Module) -> None:
    """Be process A: run its stage and share the requests out to the replicas, until the front leaves."""
    splitter = _Splitter(manager, rhombus, stage)
    await _until_first_ends(splitter.take_in(), *(splitter.feed(replica) for replica in REPLICAS))


class _Splitter:
    def __init__(self, manager: mw.WorldManager, rhombus: Rhombus, stage: nn.Module) -> None:
        self._manager, self._rhombus, self._stage = manager, rhombus, stage
        self._ledger = ReplicaLedger(REPLICAS)
        self._values: dict[int, torch.Tensor] = {}  # activations of unanswered requests, for a replay
        self._attempts: dict[int, int] = {}
        self._queues: dict[str, asyncio.Queue[int]] = {replica: asyncio.Queue() for replica in REPLICAS}

    async def take_in(self) -> None:
        source = await self._rhombus.join(self._manager, "front", "a", rank=DOWNSTREAM)
        async for message in _messages(source, UPSTREAM):
            answered = message["answered"].tolist()
            self._ledger.answered(answered)
            for request in answered:
                self._values.pop(request, None)
                self._attempts.pop(request, None)
            request = int(message["request"])
            self._values[request] = _forward(self._stage, message["values"])
            self._hand_over(self._ledger.assign(request))

    async def feed(self, replica: str) -> None:
        """Keep one replica fed, through every generation of its world."""
        world = await self._rhombus.join(self._manager, "a", replica, rank=UPSTREAM)
        while True:
            self._hand_over(*self._ledger.up(replica))
            try:
                await _until_first_ends(self._send_queued(replica, world), _broken(world))
            except mw.WorldBrokenError:
                self._queues[replica] = asyncio.Queue()
                self._hand_over(*self._ledger.down(replica))
            world = await _rejoin(self._manager, world.name)

    async def _send_queued(self, replica: str, world: mw.World) -> None:
        while True:
            request = await self._queues[replica].get()
            if self._ledger.holder(request) == replica:  # else it was answered or moved while it waited here
                attempt = self._attempts[request] = self._attempts.get(request, 0) + 1
                message = {"request": torch.tensor(request), "attempt": torch.tensor(attempt)}
                await world.send_tensors({**message, "values": self._values[request]}, DOWNSTREAM)

    def _hand_over(self, *assignments: Assignment | None) -> None:
        for assignment in assignments:
            if assignment is not None:
                self._queues[assignment.replica].put_nowait(assignment.request)


async def run_replica(manager: mw.WorldManager, rhombus: Rhombus, stage: nn.Module, replica: str, worker: int) -> None:
    """Be one of the B processes, from the start or as a replacement, until either neighbour leaves."""
    source, sink = await asyncio.gather(
        rhombus.join(manager, "a", replica, rank=DOWNSTREAM), rhombus.join(manager, replica, "c", rank=UPSTREAM)
    )

    async def relay() -> None:
        async for message in _messages(source, UPSTREAM):
            message["values"] = _forward(stage, message["values"])
            await sink.send_tensors({**message, "worker": torch.tensor(worker)}, DOWNSTREAM)

    await _until_left(_until_first_ends(relay(), _broken(sink)))


async def run_joiner(manager: mw.WorldManager, rhombus: Rhombus, stage: nn.Module) -> None:
    """Be process C: run its stage on what any replica sends, and answer to the front, until the front leaves."""
    sink = await rhombus.join(manager, "c", "front", rank=UPSTREAM)

    async def drain(replica: str) -> None:
        world = await rhombus.join(manager, replica, "c", rank=DOWNSTREAM)
        while True:
            try:
                while True:
                    message = await receive(world, UPSTREAM)
                    message["values"] = _forward(stage, message["values"])
                    await sink.send_tensors(message, DOWNSTREAM)
            except mw.WorldBrokenError as error:
                if error.world != world.name:
                    raise
            world = await _rejoin(manager, world.name)

    await _until_left(_until_first_ends(_broken(sink), *map(drain, REPLICAS)))


def _forward(stage: nn.Module, values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = stage(values)
    return result


async def receive(world: mw.World, src: int) -> dict[str, torch.Tensor]:
    """Receive one message of the pipeline; ``TypeError`` if the peer speaks something else."""
    message = await world.recv_tensors(src)
    if not isinstance(message, dict):
        raise TypeError(f"rank {src} of world {world.name!r} sent a {type(message).__name__}, not a dict of tensors")
    return message


async def _messages(world: mw.World, src: int) -> AsyncIterator[dict[str, torch.Tensor]]:
    """Yield what ``src`` sends until it leaves; a world that breaks otherwise raises."""
    try:
        while True:
            yield await receive(world, src)
    except mw.PeerLeftError:
        return


async def _broken(world: mw.World) -> None:
    """Wait until the world breaks, and raise why, also while nothing is being sent on it."""
    raise await world.wait_broken()


async def _until_left(work: Coroutine[Any, Any, None]) -> None:
    """Run until a peer leaves, which is how the pipeline ends."""
    try:
        await work
    except mw.PeerLeftError:
        return


async def _rejoin(manager: mw.WorldManager, name: str) -> mw.World:
    """Wait as long as it takes for a replacement to join the next generation."""
    while True:
        try:
            return await manager.rejoin(name)
        except mw.JoinTimeoutError:
            continue


async def _until_first_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Run all of it until the first part ends or fails; cancel the others, wait for them, and raise its failure."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

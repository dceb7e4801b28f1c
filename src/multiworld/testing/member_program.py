"""A worker that belongs to worlds and does what its parent says, so that a test is written in one place.

Each command runs as a task of its own and is answered by a ``done`` or ``failed`` report with its ``id``, and the time
at which the operation ended. A broken world is reported as ``broken`` when ``World.wait_broken`` returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

import multiworld as mw

from .resources import measure, trim
from .rounds import play_round
from .worker import Command, next_command, report


async def run(**options: Any) -> None:
    """Be a member until told to ``quit``; ``options`` go to ``WorldManager``."""
    await be(MemberProgram, **options)


async def be(program: type[MemberProgram], **options: Any) -> None:
    """As ``run``, with the commands of a class of one's own."""
    async with mw.WorldManager(**options) as manager:
        member = program(manager)
        report("ready")
        try:
            await member.obey()
        finally:
            member.cancel()


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return what a report says about an error: its class, its bases' names, its message and its plain fields."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, (str, int, float))}
    return {
        "error": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "message": str(error),
        "fields": fields,
    }


class MemberProgram:
    """The worlds of this process and the tasks in them.

    A public method is a command, but for ``obey`` and ``cancel``; its result is reported.
    """

    def __init__(self, manager: mw.WorldManager) -> None:
        self._manager = manager
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    async def obey(self) -> None:
        while (command := await next_command()).name != "quit":
            number = command["id"]
            self._tasks[number] = task = asyncio.create_task(self._answer(command))
            task.add_done_callback(partial(self._forget, number))

    def _forget(self, number: int, _: asyncio.Task[None]) -> None:
        del self._tasks[number]

    def cancel(self) -> None:
        for task in (*self._tasks.values(), *self._watchers):
            task.cancel()

    async def _answer(self, command: Command) -> None:
        fields = dict(command.fields)
        number = fields.pop("id")
        work: Callable[..., Awaitable[Any]] = getattr(self, command.name)
        started_at = report("started", id=number)
        try:
            value = await work(**fields)
        except (Exception, asyncio.CancelledError) as error:
            at = time.monotonic()
            report("failed", id=number, at=at, took_s=at - started_at, **describe_error(error))
        else:
            at = time.monotonic()
            report("done", id=number, at=at, took_s=at - started_at, value=value)

    async def _watch(self, world: mw.World) -> None:
        try:
            error = await world.wait_broken()
        except mw.WorldClosedError:  # left or aborted here
            report("closed", world=world.name, generation=world.generation)
            return
        report("broken", at=time.monotonic(), world=world.name, generation=world.generation, **describe_error(error))

    # ---- worlds

    async def serve_store(self, url: str = "tcp://127.0.0.1:0") -> str:
        return self._manager.serve_store(url)

    async def join(self, world: str, **options: Any) -> dict[str, Any]:
        return self._joined(await self._manager.join(world, **options))

    async def rejoin(self, world: str, **options: Any) -> dict[str, Any]:
        return self._joined(await self._manager.rejoin(world, **options))

    async def join_until_it_works(self, world: str, timeout_s: float, **options: Any) -> int:
        """Join, and rejoin as often as the world breaks, until all members have reduced once; return the generation."""
        joined = await self.join(world, timeout_s=timeout_s, **options)
        while True:
            try:
                await self.collective(world, "all_reduce")
            except mw.WorldBrokenError:
                joined = await self.rejoin(world, timeout_s=timeout_s)
            else:
                return int(joined["generation"])

    def _joined(self, world: mw.World) -> dict[str, Any]:
        watcher = asyncio.create_task(self._watch(world))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return {"rank": world.rank, "generation": world.generation, "backend": world.backend}

    async def leave(self, world: str) -> None:
        await self._manager.worlds[world].leave()

    async def abort(self, world: str) -> None:
        self._manager.worlds[world].abort()

    async def worlds(self) -> dict[str, str]:
        return {name: world.state.name for name, world in self._manager.worlds.items()}

    async def statistics(self, world: str) -> dict[str, Any]:
        return asdict(self._manager.worlds[world].statistics())

    async def cancel_call(self, call: int) -> None:
        if call in self._tasks:  # else it has ended
            self._tasks[call].cancel()

    # ---- tensors: full of one value, so that one number says whether they are right

    async def send(self, world: str, dst: int, value: float, numel: int = 1, **options: Any) -> None:
        await self._manager.worlds[world].send(torch.full((numel,), value), dst, **options)

    async def recv(self, world: str, src: int, numel: int = 1, dtype: str = "float32", **options: Any) -> list[float]:
        tensor = torch.full((numel,), -1, dtype=getattr(torch, dtype))
        try:
            await self._manager.worlds[world].recv(tensor, src, **options)
        except BaseException:
            if not bool((tensor == -1).all()):
                report("written", world=world)  # a receive that failed must not have touched its buffer
            raise
        return [float(tensor.min()), float(tensor.max())]

    async def collective(self, world: str, kind: str, number: int = 0, numel: int = 1024) -> None:
        await play_round(self._manager.worlds[world], kind, number, numel)

    async def play(
        self, world: str, kind: str, num_rounds: int | None = None, numel: int | Sequence[int] = 1024
    ) -> int:
        """Play rounds until one fails, or ``num_rounds``, of the sizes in turn; report ``playing`` after the first."""
        sizes = [numel] if isinstance(numel, int) else numel
        number = 0
        while number != num_rounds:
            await self.collective(world, kind, number, sizes[number % len(sizes)])
            if number == 0:
                report("playing", world=world, kind=kind)
            number += 1
        return number

    # ---- misbehaviour

    async def block_main_thread(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it is the point

    async def hold_gil(self, seconds: float) -> None:
        """Stand in for a C extension that computes without letting go of the interpreter lock."""
        report("holding")
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    async def burn(self, seconds: float) -> None:
        """Compute in Python on the main thread, without a pause for the event loop."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(10_000))

    # ---- observations

    async def resources(self) -> dict[str, Any]:
        trim()
        return asdict(measure())

    async def longest_stall(self, seconds: float, every_s: float = 0.002) -> float:
        """Return by how much the event loop was late at worst, within ``seconds`` of ticks."""
        loop = asyncio.get_running_loop()
        end, worst = loop.time() + seconds, 0.0
        while loop.time() < end:
            before = loop.time()
            await asyncio.sleep(every_s)
            worst = max(worst, loop.time() - before - every_s)
        return worst

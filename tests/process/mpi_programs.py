"""What the processes of an MPI job do: ``mpiexec -n N python -m tests.process.mpi_programs NAME FOLDER``.

Each appends what it has to say, as JSON lines, to a file of its own in the folder; the first line is its pid.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import multiworld as mw
from multiworld.channel.mpi import channel as mpi
from multiworld.testing import wait_until
from multiworld.wire.progress.operation import Operation

NUMEL = 700_000  # 2.8 MB: three chunks
RANK, SIZE = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")), int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
folder = Path()


def say(event: str, **fields: Any) -> None:
    with (folder / f"rank{RANK}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **fields}) + "\n")


def has_said(rank: int, event: str) -> bool:
    path = folder / f"rank{rank}.jsonl"
    return path.exists() and f'"event": "{event}"' in path.read_text()


async def until_said(rank: int, event: str) -> None:
    assert await asyncio.to_thread(wait_until, lambda: has_said(rank, event), 20), f"rank {rank} never said {event}"


def store_url(manager: mw.WorldManager) -> str:
    """Serve the store in rank 0; the others learn its address from a file."""
    path = folder / "store"
    if RANK == 0:
        path.with_suffix(".new").write_text(manager.serve_store("tcp://127.0.0.1:0"))
        path.with_suffix(".new").rename(path)
    assert wait_until(path.exists, 20)
    return path.read_text()


async def check_works(world: mw.World) -> None:
    """Send large payloads around, and reduce one."""
    right, left = (world.rank + 1) % world.world_size, (world.rank - 1) % world.world_size
    received = torch.empty(NUMEL)
    await asyncio.gather(world.send(torch.full((NUMEL,), float(world.rank)), right), world.recv(received, left))
    assert bool((received == left).all())
    tensor = torch.full((NUMEL,), float(world.rank + 1))
    await world.all_reduce(tensor)
    assert bool((tensor == world.world_size * (world.world_size + 1) / 2).all())


async def collectives(world: mw.World) -> None:
    rank, size = world.rank, world.world_size
    tensor = torch.full((NUMEL,), float(rank))
    await world.broadcast(tensor, 1)
    assert bool((tensor == 1).all())
    gathered = [torch.empty(NUMEL) for _ in range(size)]
    await world.all_gather(gathered, torch.full((NUMEL,), float(rank)))
    assert [each[0].item() for each in gathered] == list(range(size))
    output = torch.empty(NUMEL)
    await world.reduce_scatter(output, [torch.full((NUMEL,), float(index)) for index in range(size)])
    assert bool((output == rank * size).all())
    outputs = [torch.empty(NUMEL) for _ in range(size)]
    await world.all_to_all(outputs, [torch.full((NUMEL,), float(10 * rank + index)) for index in range(size)])
    assert [each[-1].item() for each in outputs] == [10 * index + rank for index in range(size)]
    await world.barrier()


async def deadlines(world: mw.World) -> None:
    """Rank 1 gives receives up before and while their messages come; they are kept for the next."""
    num_given_up = 0
    if world.rank == 0:
        for value in range(20):
            await world.send(torch.full((NUMEL,), float(value)), 1, tag=7)
    elif world.rank == 1:
        for value in range(20):
            buffer = torch.full((NUMEL,), -1.0)
            try:
                await world.recv(buffer, 0, tag=7, timeout_s=0.001 * (1 + value % 5))
            except mw.OperationTimeoutError:
                num_given_up += 1
                seen, received = buffer.clone(), torch.empty(NUMEL)
                await world.recv(received, 0, tag=7)
                assert torch.equal(seen, buffer)
                buffer = received
            assert bool((buffer == value).all())
        say("gave up", number=num_given_up)
    await world.barrier()


async def mismatch(world: mw.World) -> None:
    if world.rank == 0:
        await world.send(torch.ones(NUMEL), 1)
    elif world.rank == 1:
        try:
            await world.recv(torch.empty(NUMEL + 1), 0)
        except mw.TensorMismatchError:
            await world.recv(torch.empty(NUMEL), 0)
            say("mismatched")
    await world.barrier()


async def everything() -> None:
    assert "mpi4py" not in sys.modules
    async with mw.WorldManager() as manager:
        url = store_url(manager)
        world = await manager.join("w", RANK, SIZE, url, backend="mpi")
        assert "mpi4py.MPI" in sys.modules
        for part in (check_works, collectives, deadlines, mismatch):
            await part(world)
        used = time.process_time()
        await asyncio.sleep(0.3)
        say("idle", cpu_s=time.process_time() - used)
        await world.barrier()
        if RANK == 1:
            await world.leave()
        else:
            error = await world.wait_broken()
            assert isinstance(error, mw.PeerLeftError)
        if RANK == 1:
            world = await manager.join("w", RANK, SIZE, url, backend="mpi")
        else:
            world = await manager.rejoin("w")
        assert world.generation == 2
        await check_works(world)
        await world.barrier()
    say("done")


async def killed() -> None:
    """Ranks 0 and 1 are a pair, 0 and 2 another; 1 is killed, and 2 takes its place."""
    async with mw.WorldManager() as manager:
        url = store_url(manager)
        joins = {}
        if RANK < 2:
            joins["pair"] = manager.join("pair", RANK, 2, url, backend="mpi")
        if RANK != 1:
            joins["other"] = manager.join("other", RANK // 2, 2, url, backend="mpi")
        worlds = dict(zip(joins, await asyncio.gather(*joins.values()), strict=True))
        for world in worlds.values():
            await check_works(world)
        if RANK == 1:
            say("killed")
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGKILL)
            while True:
                await worlds["pair"].send(torch.ones(20 * NUMEL), 0)
        if RANK == 0:
            buffer = torch.empty(20 * NUMEL)
            try:
                while True:
                    await worlds["pair"].recv(buffer, 1)
            except mw.PeerDiedError as error:
                say("noticed", rank=error.rank)
        for _ in range(5):
            await check_works(worlds["other"])
        rejoining = manager.rejoin("pair") if RANK == 0 else manager.join("pair", 1, 2, url, backend="mpi")
        pair = await rejoining
        assert pair.generation == 2
        await check_works(pair)
        await pair.barrier()
    say("done")


async def stopped() -> None:
    async with mw.WorldManager(lease_s=0.5) as manager:
        world = await manager.join("w", RANK, SIZE, store_url(manager), backend="mpi")
        try:
            await check_works(world)  # which the other one may be in still when this one stops
            if RANK == 1:
                say("stopped")
                os.kill(os.getpid(), signal.SIGSTOP)
            await world.recv(torch.empty(NUMEL), 1 - RANK)
        except (mw.PeerStoppedError, mw.StaleGenerationError, mw.PeerDiedError) as error:
            say("noticed", error=type(error).__name__)
    say("done")


async def owned() -> None:
    """The program uses MPI itself beside its world. Then rank 1 is killed."""
    from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

    async with mw.WorldManager() as manager:
        url = MPI.COMM_WORLD.bcast(manager.serve_store("tcp://127.0.0.1:0") if RANK == 0 else None)
        world = await manager.join("w", RANK, SIZE, url, backend="mpi")
        await check_works(world)
        assert MPI.COMM_WORLD.allreduce(RANK) == sum(range(SIZE))
        say("worked")
        await world.barrier()
        if RANK == 1:
            await until_said(0, "worked")
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)
    say("done")


async def absent() -> None:
    """Rank 1 never initializes MPI, so MPI_Init of rank 0 waits; its interpreter does not.

    Rank 0 gives up first: else it hears that rank 1 did.
    """
    timeout_s = 3 + 3 * RANK
    if RANK == 1:
        setattr(mpi, "open_job", Operation)  # noqa: B010 - a stand-in that never ends
    ticks = asyncio.create_task(count())
    async with mw.WorldManager() as manager:
        try:
            await manager.join("w", RANK, 2, store_url(manager), backend="mpi", timeout_s=timeout_s)
        except mw.JoinError as error:
            say("refused", error=type(error).__name__, text=str(error))
    ticks.cancel()
    say("done")


async def count() -> None:
    number = 0
    while True:
        await asyncio.sleep(0.05)
        number += 1
        say("tick", number=number)


def main() -> None:
    global folder
    program, folder = globals()[sys.argv[1]], Path(sys.argv[2])
    say("started")
    asyncio.run(program())


if __name__ == "__main__":
    main()

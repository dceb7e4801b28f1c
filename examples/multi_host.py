"""The arguments of a world that spans machines: the same command on each host, with another rank.

    host-a$ python multi_host.py --store tcp://10.0.0.1:29400 --world-size 2 --rank 0 --host 10.0.0.1
    host-b$ python multi_host.py --store tcp://10.0.0.1:29400 --world-size 2 --rank 1 --host 10.0.0.2

Rank 0 hosts the store at its own address; ``--host`` is the address at which the others reach this process. Set
MULTIWORLD_TOKEN to the same secret on all hosts, and nobody else can join. Without ``--rank`` the program starts all
ranks itself, on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys

import torch

import multiworld as mw


async def run_rank(store: str, rank: int, world_size: int, host: str) -> None:
    """Sum up the ranks over all hosts, and tell who took part."""
    async with mw.WorldManager(host=host, token=os.environ.get("MULTIWORLD_TOKEN")) as manager:
        world = await manager.join(
            "hosts", rank=rank, world_size=world_size, store=store, serve_store=rank == 0, timeout_s=60
        )
        total = torch.tensor([rank])
        await world.all_reduce(total)
        expected = world_size * (world_size - 1) // 2
        print(f"rank {rank} of {world_size} on {socket.gethostname()} at {host}: sum {int(total)}", flush=True)
        assert int(total) == expected, f"expected {expected}"
        await world.barrier()  # the host of the store stays until all are done


def run_here(world_size: int) -> int:
    """Start every rank on this machine, with the very arguments that several machines would use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        store = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, __file__, "--store", store, "--world-size", str(world_size), "--host", "127.0.0.1"]
    processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(world_size)]
    return max([process.wait() for process in processes], key=abs)


def main() -> int:
    """Be one rank, or start all of them."""
    parser = argparse.ArgumentParser(description="One world over several hosts.")
    parser.add_argument("--store", help="tcp://HOST:PORT at which rank 0 hosts the store")
    parser.add_argument("--rank", type=int, help="the rank of this process, from 0; default: start all on loopback")
    parser.add_argument("--world-size", type=int, default=3, help="number of processes (default: 3)")
    parser.add_argument("--host", default="127.0.0.1", help="address of this host for the others (default: loopback)")
    options = parser.parse_args()
    if options.rank is None:
        return run_here(options.world_size)
    if options.store is None:
        parser.error("--rank needs --store")
    asyncio.run(run_rank(options.store, options.rank, options.world_size, options.host))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Receive in one process from two worlds; when a sender is killed, its world breaks and the other goes on.

The program of the README of multiworld 0.0.2, with its options and its calls. In three terminals:

    python multiworld_asyncio.py --rank 0
    python multiworld_asyncio.py --rank 1
    python multiworld_asyncio.py --rank 2

Kill rank 1 or 2: rank 0 says so, and goes on with the other. On several hosts, --addr is the address of rank 0.
With --backend nccl each rank takes the GPU of its number.
"""

import argparse
import asyncio

import torch
import torch.distributed as dist

import multiworld

multiworld.install_in_torch()  # in place of the patch that 0.0.2 needed

PORTS = {"world1": 29500, "world2": 30500}


def make_tensors(options: argparse.Namespace, value: float) -> list[torch.Tensor]:
    device = f"cuda:{options.rank}" if options.backend == "nccl" else "cpu"
    return [torch.full((1,), value, device=device) for _ in range(options.batch)]


async def receive(communicator: multiworld.WorldCommunicator, options: argparse.Namespace) -> None:
    """Take turns between the worlds until none is left."""
    worlds = list(PORTS)
    while worlds:
        for world in list(worlds):
            tensors = make_tensors(options, 0.0)
            try:
                await communicator.recv(tensors, world, 1)
            except multiworld.BrokenWorldException as error:
                print(f"{world} is broken: {error}", flush=True)
                worlds.remove(world)
                continue
            print(f"{world}: received {[float(tensor) for tensor in tensors]}", flush=True)


async def send(communicator: multiworld.WorldCommunicator, world: str, options: argparse.Namespace) -> None:
    """Send a batch every now and then, for as long as the receiver is there."""
    while True:
        tensors = make_tensors(options, float(options.rank))
        try:
            await communicator.send(tensors, world, 0)
        except multiworld.BrokenWorldException as error:
            print(f"{world} is broken: {error}", flush=True)
            return
        await asyncio.sleep(options.pause)


async def main(options: argparse.Namespace) -> None:
    manager = dist.WorldManager()  # type: ignore[attr-defined]
    for number, (world, port) in enumerate(PORTS.items(), start=1):
        if options.rank in (0, number):
            rank = min(options.rank, 1)
            manager.initialize_world(world, rank, 2, backend=options.backend, addr=options.addr, port=port)
    if options.rank == 0:
        await receive(manager.communicator, options)
    else:
        await send(manager.communicator, f"world{options.rank}", options)
    manager.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo", help="gloo, nccl, or another channel (default: %(default)s)")
    parser.add_argument("--addr", default="127.0.0.1", help="of rank 0 (default: %(default)s)")
    parser.add_argument("--rank", type=int, required=True, choices=(0, 1, 2), help="0 receives, 1 and 2 send")
    parser.add_argument("--batch", type=int, default=1, help="tensors in one call (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two sends (default: %(default)s)")
    asyncio.run(main(parser.parse_args()))

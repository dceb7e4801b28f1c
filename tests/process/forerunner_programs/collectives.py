"""Three ranks run every collective in each of their worlds, one task per world, and end right after the last."""

import argparse
import asyncio

import torch
import torch.distributed as dist

from multiworld.communicator import WorldCommunicator
from multiworld.manager import WorldManager

SIZE = 3


async def step(communicator: WorldCommunicator, world: str, rank: int, seed: int) -> None:
    tensor = torch.full((4,), float(rank + seed))
    await communicator.all_reduce(tensor, world_name=world)
    assert tensor.tolist() == [3.0 + 3 * seed] * 4, tensor

    tensor = torch.full((4,), float(rank + seed))
    await communicator.all_reduce(tensor, dist.ReduceOp.MAX, world)
    assert tensor.tolist() == [2.0 + seed] * 4, tensor

    tensor = torch.tensor([rank + seed])
    await communicator.broadcast(tensor, 1, world)
    assert tensor.item() == 1 + seed, tensor

    tensor = torch.tensor([rank + seed])
    await communicator.reduce(tensor, 2, dist.ReduceOp.SUM, world)
    assert rank != 2 or tensor.item() == 3 + 3 * seed, tensor

    tensors = [torch.zeros(2) for _ in range(SIZE)]
    await communicator.all_gather(tensors, torch.full((2,), float(rank + seed)), world)
    assert [t[0].item() for t in tensors] == [seed, 1.0 + seed, 2.0 + seed], tensors

    gathered = [torch.zeros(2) for _ in range(SIZE)] if rank == 0 else None
    await communicator.gather(torch.full((2,), float(rank + seed)), gathered, 0, world)
    assert gathered is None or [t[0].item() for t in gathered] == [seed, 1.0 + seed, 2.0 + seed], gathered

    tensor = torch.zeros(2)
    parts = [torch.full((2,), float(i + seed)) for i in range(SIZE)] if rank == 1 else None
    await communicator.scatter(tensor, parts, 1, world)
    assert tensor.tolist() == [float(rank + seed)] * 2, tensor


async def work(communicator: WorldCommunicator, world: str, rank: int, steps: int) -> None:
    for number in range(1, steps + 1):
        try:
            await step(communicator, world, rank, number)
        except AssertionError:
            raise
        except Exception as e:
            print(f"{world}: caught an exception: {e}")
            return
        if number == 5:
            print(f"{world}: under way")
    print(f"{world}: done")


async def main(args: argparse.Namespace) -> None:
    world_manager = WorldManager()
    tasks = []
    for item in args.worldinfo:
        index, rank, port = map(int, item.split(","))
        world = f"world{index}"
        await world_manager.initialize_world(
            world, rank, SIZE, backend=args.backend, addr="127.0.0.1", port=port, timeout=20, device=torch.device("cpu")
        )
        tasks.append(asyncio.create_task(work(world_manager.communicator, world, rank, args.steps)))
    await asyncio.gather(*tasks)
    world_manager.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--worldinfo", type=str, action="append")
    asyncio.run(main(parser.parse_args()))

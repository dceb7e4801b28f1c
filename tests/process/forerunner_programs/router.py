"""A server that sets up its worlds side by side, polls ``is_broken``, removes worlds and initializes them again."""

import argparse
import asyncio

import torch

from multiworld.communicator import BrokenWorldException, WorldCommunicator
from multiworld.manager import WorldManager


class Sender:
    def __init__(self, communicator: WorldCommunicator, world_name: str, rank: int) -> None:
        self.communicator = communicator
        self.world_name = world_name
        self.rank = rank

    async def send(self, tensors: "dict[str, torch.Tensor]") -> None:
        for tensor in tensors.values():
            await self.communicator.send(tensor, self.rank, self.world_name)

    def is_broken(self) -> bool:
        return self.communicator.is_broken(self.world_name)


async def serve(manager: WorldManager, world: str, queue: "asyncio.Queue[int]") -> None:
    sender = Sender(manager.communicator, world, 1)
    print(f"{world}: serving")
    while True:
        try:
            number = await asyncio.wait_for(queue.get(), 0.05)
        except asyncio.TimeoutError:
            if not sender.is_broken():
                continue
            print(f"{world}: idle and broken")
            return
        try:
            await sender.send({"x": torch.full((8,), float(number)), "mask": torch.tensor([number % 2 == 0])})
        except BrokenWorldException as e:
            print(f"{world}: {e}")
            return
        finally:
            queue.task_done()


async def server(manager: WorldManager, args: argparse.Namespace) -> None:
    names = [f"world{index}" for index in range(len(args.ports))]
    queues = {name: asyncio.Queue[int]() for name in names}

    async def initialize(name: str, port: int) -> None:
        await manager.initialize_world(
            name, 0, 2, backend=args.backend, addr="127.0.0.1", port=port, device=torch.device("cuda:0")
        )

    async def keep(name: str, port: int) -> None:
        for _ in range(args.lives):
            await serve(manager, name, queues[name])
            manager.remove_world(name)
            await initialize(name, port)
            print(f"{name}: initialized again")
        await serve(manager, name, queues[name])

    await asyncio.gather(*(initialize(*pair) for pair in zip(names, args.ports, strict=True)))
    tasks = [asyncio.create_task(keep(*pair)) for pair in zip(names, args.ports, strict=True)]
    for number in range(args.requests):
        await queues[names[number % len(names)]].put(number)
        await asyncio.sleep(0.001)
    await asyncio.gather(*(queue.join() for queue in queues.values()))
    print("served")
    await asyncio.Event().wait() if args.lives else await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    for name in names:
        manager.remove_world(name)


async def worker(manager: WorldManager, args: argparse.Namespace) -> None:
    await manager.initialize_world(f"world{args.worker}", 1, 2, backend=args.backend, port=args.ports[args.worker])
    print("initialized")
    count = 0
    x, mask = torch.zeros(8), torch.zeros(1, dtype=torch.bool)
    try:
        while True:
            await manager.communicator.recv(x, 0, f"world{args.worker}")
            await manager.communicator.recv(mask, 0, f"world{args.worker}")
            assert mask.item() == (x[0].item() % 2 == 0)
            count += 1
    except BrokenWorldException as e:
        print(f"received {count}; {e}")


async def main(args: argparse.Namespace) -> None:
    manager = WorldManager(enable_monitor=True)
    await (server(manager, args) if args.worker is None else worker(manager, args))
    manager.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--ports", type=int, nargs="+")
    parser.add_argument("--worker", type=int)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--lives", type=int, default=0)
    asyncio.run(main(parser.parse_args()))

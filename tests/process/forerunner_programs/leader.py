"""A leader receives from one worker per world, and goes on with the rest when a worker is gone."""

import argparse
import asyncio
import time

import torch

from multiworld.manager import WorldManager

world_manager: WorldManager


async def init_world(world_name: str, rank: int, size: int, backend: str, port: int) -> None:
    await world_manager.initialize_world(world_name, rank, size, backend=backend, addr="127.0.0.1", port=port)


async def send_data(world_name: str, rank: int, pause_s: float) -> None:
    communicator = world_manager.communicator
    count = 0
    while True:
        time.sleep(pause_s)  # a forward pass, on the event loop's own thread
        count += 1
        try:
            await communicator.send(torch.ones(1) * count, 1 - rank, world_name)
        except Exception as e:
            print(f"caught an exception: {e}")
            break
    print("got out of the loop")


async def receive_data(worlds: "list[str]") -> None:
    communicator = world_manager.communicator
    expected = dict.fromkeys(worlds, 1)
    while len(worlds):
        for world in list(worlds):
            tensor = torch.zeros(1)
            try:
                await communicator.recv(tensor, 1, world)
            except Exception as e:
                print(f"caught an exception: {type(e).__name__}: {e}")
                print(f"{world} is broken: {communicator.is_broken(world)}")
                worlds.remove(world)
                continue
            assert tensor.item() == expected[world], f"{world}: {tensor.item()} instead of {expected[world]}"
            expected[world] += 1
            if expected[world] % 10 == 0:
                print(f"received {expected[world]} from {world}")


async def main(args: argparse.Namespace) -> None:
    global world_manager
    world_manager = WorldManager()
    worlds = []
    for item in args.worldinfo:
        index, rank, port = map(int, item.split(","))
        worlds.append(f"world{index}")
        await init_world(worlds[-1], rank, 2, args.backend, port)
    print("initialized")
    if rank == 0:
        await receive_data(worlds)
    else:
        await send_data(worlds[0], rank, args.pause)
    world_manager.cleanup()
    print("cleaned up")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--worldinfo", type=str, action="append")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main(parser.parse_args()))

"""A leader starts its workers with ``torch.multiprocessing``, deals requests out, and skips workers that are gone."""

import argparse
import asyncio
import atexit

import torch
import torch.multiprocessing as mp

from multiworld.communicator import WorldCommunicator
from multiworld.manager import WorldManager

LEADER, WORKER = 0, 1
world_manager: "WorldManager | None" = None
processes: "list[mp.Process]" = []


async def work(communicator: WorldCommunicator, world_name: str) -> None:
    while True:
        image = torch.zeros(1, 3, 8, 8)
        try:
            await communicator.recv(image, LEADER, world_name)
            with torch.no_grad():
                _, predicted = torch.max(image.flatten(1), 1)
            await communicator.send(predicted, LEADER, world_name)
        except Exception as e:
            print(f"{world_name} ended: {e}", flush=True)
            return


async def init_world(world_name: str, rank: int, backend: str, port: int) -> WorldCommunicator:
    global world_manager
    if world_manager is None:
        world_manager = WorldManager()
    await world_manager.initialize_world(world_name, rank, 2, backend=backend, addr="127.0.0.1", port=port)
    if rank == WORKER:
        await work(world_manager.communicator, world_name)
    return world_manager.communicator


def run_worker(world_name: str, backend: str, port: int) -> None:
    asyncio.run(init_world(world_name, WORKER, backend, port))


def cleanup() -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()
    print("workers:", [process.exitcode for process in processes], flush=True)


async def main(args: argparse.Namespace) -> None:
    mp.set_start_method("spawn")
    names = [f"world{index}" for index in range(len(args.ports))]
    for name, port in zip(names, args.ports, strict=True):
        processes.append(mp.Process(target=run_worker, args=(name, args.backend, port)))
        processes[-1].start()
    for name, port in zip(names, args.ports, strict=True):
        communicator = await init_world(name, LEADER, args.backend, port)
    answers: list[bool] = []
    turn = 0
    for number in range(args.requests):
        if number == args.requests // 2:
            processes[0].kill()
        image = torch.zeros(1, 3, 8, 8)
        image[0, 0, 0, number % 8] = 1
        while True:
            name = names[turn % len(names)]
            turn += 1
            try:
                await communicator.send(image, WORKER, name)
                answer = torch.zeros(size=(1,), dtype=torch.int64)
                await communicator.recv(answer, WORKER, name)
            except Exception as e:
                print(f"skipped {name}: {e}", flush=True)
                continue
            break
        answers.append(answer.item() == number % 8)
    print(f"answers: {len(answers)}, right: {sum(answers)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--ports", type=int, nargs="+")
    parser.add_argument("--requests", type=int, default=40)
    atexit.register(cleanup)
    asyncio.run(main(parser.parse_args()))

"""Each collective once, in a world of three processes without an event loop: the blocking twin of every operation."""

from __future__ import annotations

import multiprocessing

import torch

import multiworld as mw

SIZE = 3


def run_rank(rank: int, store: str) -> None:
    """Join the world and check what each collective returns; the same program on every rank."""
    with mw.WorldManager() as manager:
        world = manager.blocking.join("collectives", rank=rank, world_size=SIZE, store=store)
        run = world.blocking
        mine = torch.tensor([float(rank), 10.0 * rank])
        everyone = [torch.tensor([float(other), 10.0 * other]) for other in range(SIZE)]
        total = torch.tensor([3.0, 30.0])

        tensor = mine.clone()
        run.broadcast(tensor, src=2)
        check(rank, "broadcast", tensor, everyone[2])

        tensor = mine.clone()
        run.all_reduce(tensor)
        check(rank, "all_reduce (sum)", tensor, total)

        tensor = mine.clone()
        run.all_reduce(tensor, op=mw.ReduceOp.MAX)
        check(rank, "all_reduce (max)", tensor, everyone[2])

        tensor = mine.clone()
        run.reduce(tensor, dst=1)
        if rank == 1:
            check(rank, "reduce", tensor, total)

        parts = [torch.empty(2) for _ in range(SIZE)]
        run.all_gather(parts, mine)
        check(rank, "all_gather", torch.stack(parts), torch.stack(everyone))

        gathered = [torch.empty(2) for _ in range(SIZE)] if rank == 0 else None
        run.gather(mine, gathered, dst=0)
        if gathered is not None:
            check(rank, "gather", torch.stack(gathered), torch.stack(everyone))

        tensor = torch.empty(2)
        run.scatter(tensor, everyone if rank == 0 else None, src=0)
        check(rank, "scatter", tensor, mine)

        tensor = torch.empty(2)
        run.reduce_scatter(tensor, [mine + 100.0 * other for other in range(SIZE)])
        check(rank, "reduce_scatter", tensor, total + SIZE * 100.0 * rank)

        outputs = [torch.empty(1) for _ in range(SIZE)]
        run.all_to_all(outputs, [torch.tensor([10.0 * rank + other]) for other in range(SIZE)])
        check(rank, "all_to_all", torch.cat(outputs), torch.tensor([10.0 * other + rank for other in range(SIZE)]))

        run.barrier()


def check(rank: int, what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare, and let rank 0 (or the only rank that has a result) tell."""
    assert torch.equal(actual, expected), f"rank {rank}: {what} returned {actual}, not {expected}"
    if rank == 0 or what == "reduce":
        print(f"rank {rank}: {what:<16} {actual.flatten().tolist()}", flush=True)


def main() -> None:
    """Host the store and start three processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["multiworld", "torch"])  # imported once, not by each process
    with mw.WorldManager() as manager:
        store = manager.serve_store("tcp://127.0.0.1:0")
        processes = [context.Process(target=run_rank, args=(rank, store)) for rank in range(SIZE)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0] * SIZE
    print("all ranks agree")


if __name__ == "__main__":
    main()

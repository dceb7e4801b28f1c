"""A program in the style of the original torch.distributed, one process group and no event loop, survives a kill -9.

Three processes sum up numbers over several steps. One of them dies in step 3, a replacement takes its rank, and all go
on from where they were.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from multiprocessing.process import BaseProcess

import torch

import multiworld as mw
import multiworld.distributed as dist

SIZE, NUM_STEPS, VICTIM, DIES_AT = 3, 6, 2, 3


def run_rank(rank: int, port: int, dies: bool) -> None:
    """The program of every rank, the replacement's too."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(SIZE))
    dist.init_process_group(backend="tcp")
    total, step = torch.zeros(1), 0
    while True:
        try:
            step = agree_on_step(step, total)
            while step < NUM_STEPS:
                if dies and step == DIES_AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                part = torch.tensor([float(step * dist.get_rank())])
                dist.all_reduce(part)
                total += part
                step += 1
            break
        except mw.WorldBrokenError as error:
            print(f"rank {rank}, step {step}: {type(error).__name__} of rank {error.rank}", flush=True)
            dist.rejoin()
    collect(rank, total)
    dist.barrier()  # whoever leaves ends the group for all
    dist.destroy_process_group()


def agree_on_step(step: int, total: torch.Tensor) -> int:
    """Go on from the state of the rank that is behind among those that have one; a newcomer has none."""
    states = [torch.empty(2) for _ in range(SIZE)]
    dist.all_gather(states, torch.tensor([float(step), float(total)]))
    known = [state for state in states if state[0] > 0]
    if not known:
        return 0
    behind = min(known, key=lambda state: float(state[0]))
    total.fill_(behind[1])
    return int(behind[0])


def collect(rank: int, total: torch.Tensor) -> None:
    """Rank 0 receives from whoever is ready; the others only start to send."""
    if rank:
        request = dist.isend(total, dst=0)
        request.wait()
        return
    result = torch.empty(1)
    for _ in range(SIZE - 1):
        source = dist.recv(result)
        assert float(result) == float(total), f"rank {source} has {result}, not {total}"
        print(f"rank {source} of {dist.get_num_processes()} agrees: {float(result):g}", flush=True)
    assert float(total) == sum(range(NUM_STEPS)) * sum(range(SIZE))
    print("all ranks agree after the loss", flush=True)


def start(rank: int, port: int, *, dies: bool) -> BaseProcess:
    """Start one process of the program, as a launcher would."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["multiworld", "torch"])  # imported once, not by each process
    process = context.Process(target=run_rank, args=(rank, port, dies))
    process.start()
    return process


def main() -> None:
    """Start all ranks; replace the one that dies."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [start(rank, port, dies=rank == VICTIM) for rank in range(SIZE)]
    processes[VICTIM].join()
    assert processes[VICTIM].exitcode == -signal.SIGKILL
    processes[VICTIM] = start(VICTIM, port, dies=False)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * SIZE


if __name__ == "__main__":
    main()

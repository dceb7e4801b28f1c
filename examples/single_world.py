"""What happens without worlds: plain torch.distributed, whose one world ends for all when one process is killed.

The second program of the README of multiworld 0.0.2, with its options; to be compared with multiworld_asyncio.py.

    python single_world.py --worldsize 3                                 # all ranks on this host
    python single_world.py --worldsize 3 --multihost --rank 0 --addr A   # one rank; A is the address of rank 0

Kill one of the processes whose numbers it prints: rank 0 cannot receive from anybody any more, or waits for ever.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

PORT = "29500"


def receive(backend: str, world_size: int) -> None:
    """Receive from each of the others in turn."""
    while True:
        for source in range(1, world_size):
            tensor = torch.zeros(1, device="cuda" if backend == "nccl" else "cpu")
            try:
                dist.recv(tensor, src=source)
            except RuntimeError as error:
                print(f"rank 0: nothing from rank {source}: {str(error).splitlines()[0]}", flush=True)
                time.sleep(1.0)
                continue
            print(f"rank 0: received {float(tensor)} from rank {source}", flush=True)


def send(backend: str, rank: int, pause: float) -> None:
    """Send this rank's number every now and then."""
    tensor = torch.full((1,), float(rank), device="cuda" if backend == "nccl" else "cpu")
    while True:
        dist.send(tensor, dst=0)
        time.sleep(pause)


def work(rank: int, options: argparse.Namespace) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = options.addr, options.port
    if options.backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(options.backend, rank=rank, world_size=options.worldsize)
    print(f"rank {rank}: process {os.getpid()}", flush=True)
    if rank == 0:
        receive(options.backend, options.worldsize)
    else:
        send(options.backend, rank, options.pause)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo", help="gloo or nccl (default: %(default)s)")
    parser.add_argument("--addr", default="127.0.0.1", help="of rank 0 (default: %(default)s)")
    parser.add_argument("--port", default=PORT, help="where rank 0 hosts the store (default: %(default)s)")
    parser.add_argument("--worldsize", type=int, default=2, help="number of processes (default: %(default)s)")
    parser.add_argument("--multihost", action=argparse.BooleanOptionalAction, default=False, help="one rank, --rank")
    parser.add_argument("--rank", type=int, default=0, help="with --multihost (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two sends (default: %(default)s)")
    parser.add_argument(
        "--nccl_async_error_handle_cleanup",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="set TORCH_NCCL_ASYNC_ERROR_HANDLING to 2 (clean up only); it does not keep the others alive either",
    )
    options = parser.parse_args()
    if options.nccl_async_error_handle_cleanup:
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"
    if options.multihost:
        work(options.rank, options)
    else:
        spawn(work, (options,), nprocs=options.worldsize)  # type: ignore[no-untyped-call]

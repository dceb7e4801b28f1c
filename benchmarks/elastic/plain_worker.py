"""A program as they are written for torchrun: plain ``torch.distributed``, and a checkpoint that it begins from."""

from __future__ import annotations

import argparse
import os
import random
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from .journal import JournalWriter

HIGH = 2**40


def load(path: Path) -> int:
    """Return the number of the next step."""
    return int(path.read_text()) if path.exists() else 0


def save(path: Path, step: int) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(str(step))
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--pause-s", type=float, default=0.02)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--group-timeout-s", type=float, default=10.0)
    options = parser.parse_args()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    journal = JournalWriter(
        options.journal,
        node=os.environ.get("MULTIWORLD_BENCHMARK_NODE", ""),
        master=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        restarts=restarts,
    )
    journal.write("begun")
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.group_timeout_s))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    number, step = random.randrange(1, HIGH), load(options.checkpoint)
    while True:
        told = torch.tensor([number if rank == 0 else 0, 1])
        dist.all_reduce(told)
        formation, members = map(int, told)
        journal.write(
            "step",
            formation=formation,
            rank=rank,
            world_size=world_size,
            members=members,
            generation=restarts,
            job_generation=os.environ.get("MULTIWORLD_GENERATION"),
            step=step,
        )
        step += 1
        if rank == 0:
            save(options.checkpoint, step)
        time.sleep(options.pause_s)


if __name__ == "__main__":
    main()

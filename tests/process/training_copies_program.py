"""Shards of a training in memory, whose processes are killed. Each process writes down what it did, a line each.

training_copies_program.py FOLDER TOTAL LOST_AT LOST_RANKS WHAT

``FOLDER/saved`` has the checkpoints. At step ``LOST_AT`` the ranks ``LOST_RANKS`` (as ``0,1``) kill themselves, the
first time they come there, in the middle of the step. ``WHAT``: ``plain``; ``damaged``: before that, rank 0 changes a
byte of the newest snapshots that are no copies; ``spoilt``: and of the copy of one shard, too; ``waits``: nobody dies,
and all wait there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from multiworld import training
from multiworld.training.copies.names import parse
from multiworld.training.events import CheckpointLoaded, CopyFailed, CopyLoaded, CopySaved, TrainingEvent
from tests.process.training_sync_program import Rows, loss_of
from tests.process.warm_writer import fork_writer

EVERY, SHARED_MEMORY = 10, Path("/dev/shm")


def make_model(job: training.Job) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1)).double()
    for layer in (*model.children(), model):
        fully_shard(layer, mesh=job.replica.device_mesh())
    return model, torch.optim.AdamW(model.parameters(), lr=0.02)


def values_of(model: nn.Module) -> list[float]:
    """Return this process's shards: ``[num_elements]``."""
    shards: Sequence[Tensor] = [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]
    values: list[float] = torch.cat([each.detach().flatten() for each in shards]).tolist()
    return values


def damage(*, spoils: bool) -> None:
    """Change a byte of the newest file of each shard that no partner wrote; ``spoils``: of shard 1, of all."""
    found = [name for path in SHARED_MEMORY.iterdir() if (name := parse(path.name)) is not None]
    newest = max(name.step for name in found)
    for name in found:
        if name.step == newest and (not name.is_copy or (spoils and name.shard == 1)):
            with (SHARED_MEMORY / str(name)).open("r+b") as file:
                file.seek(200)
                (byte,) = file.read(1)
                file.seek(200)
                file.write(bytes([byte ^ 1]))


def main(folder: Path, total: int, lost_at: int, lost_ranks: Sequence[int], what: str) -> None:
    torch.set_num_threads(1)
    fork_writer()
    checkpoint = training.Checkpoint(folder / "saved", every_steps=1000, copies=1, copy_every_steps=EVERY)
    job = training.join("copied", exact=True, replica_size=2, checkpoint=checkpoint, progress=False)
    saved: set[int] = set()
    with (folder / f"{job.rank}-{os.getpid()}").open("w", buffering=1) as log:

        def heard(event: TrainingEvent) -> None:
            if isinstance(event, CopySaved):
                saved.add(event.step)
            if isinstance(event, CopyLoaded):
                log.write(json.dumps({"event": "CopyLoaded", "step": event.step, "source": event.source}) + "\n")
            if isinstance(event, (CheckpointLoaded, CopyFailed)):
                log.write(json.dumps({"event": type(event).__name__, "step": event.step}) + "\n")

        job.listen(heard)
        model, optimizer = make_model(job)
        job.replicate(model)
        job.optimizer(optimizer)
        first_life = not (folder / f"lost-{job.rank}").exists()
        for step in job.steps(Rows(), total=total):
            with step:
                for _, inputs in step:
                    if step.index == lost_at and first_life and (lost_ranks or what == "waits"):
                        (folder / f"at-{job.rank}").touch()
                        wait_for(folder / "at-0", folder / "at-1")
                        if what == "waits":
                            signal.pause()
                        lose(folder, job.rank, lost_ranks, what)
                    loss = loss_of(model, job.replica.part(inputs))
                    loss.backward()  # type: ignore[no-untyped-call]
                    step.record(loss=loss)
                optimizer.step()
            if step.committed:
                log.write(json.dumps({"did": step.index, "loss": step.values["loss"]}) + "\n")
            pace(step.index, saved)
        log.write(json.dumps({"final": values_of(model)}) + "\n")
        job.close()


def lose(folder: Path, rank: int, lost_ranks: Sequence[int], what: str) -> None:
    (folder / f"lost-{rank}").touch()
    if rank == 0 and what in ("damaged", "spoilt"):
        damage(spoils=what == "spoilt")
    (folder / f"may-end-{rank}").touch()
    wait_for(folder / "may-end-0", folder / "may-end-1")
    if rank in lost_ranks:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.005)


def pace(step: int, saved: set[int]) -> None:
    """Leave a snapshot time: later facts say that it is whole, and these steps take a millisecond."""
    if step % EVERY in range(EVERY - 4):
        time.sleep(0.02)


if __name__ == "__main__":
    lost = [int(each) for each in sys.argv[4].split(",") if each]
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), lost, sys.argv[5])

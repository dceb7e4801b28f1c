"""One replica of the demo; the launcher starts it. ``python -m multiworld.demo.training.worker PIPE STEPS SEED``"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import BinaryIO

import torch
from torch import nn

from multiworld import training
from multiworld.training.events import StepCommitted, TrainingEvent

from .model import ByteGPT, StandardLibrary, loss_of
from .records import Begun, Done, Finished, Record, encode

GLOBAL_BATCH, MICRO_BATCH = 32, 4


class Reporter:
    """Tells the demo what happens, through a pipe that all replicas share; one write of a short line is whole."""

    def __init__(self, pipe: BinaryIO, rank: int) -> None:
        self._pipe, self._rank, self._pid = pipe, rank, os.getpid()
        self._has_begun = False

    def hear(self, event: TrainingEvent) -> None:
        if not isinstance(event, StepCommitted):
            return
        if not self._has_begun:
            self._has_begun = True
            self.say(Begun(rank=self._rank, pid=self._pid, at=time.monotonic(), step=event.step))
        self.say(
            Done(
                rank=self._rank,
                pid=self._pid,
                at=time.monotonic(),
                step=event.step,
                loss=event.values["loss"],
                replicas=event.replicas,
                redone=event.redone,
                num_samples=event.num_samples,
            )
        )

    def finished(self, model: nn.Module) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        self.say(Finished(rank=self._rank, pid=self._pid, at=time.monotonic(), digest=digest.hexdigest()))

    def say(self, record: Record) -> None:
        self._pipe.write(encode(record))


def main(pipe_path: str, steps: str, seed: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    job = training.join("demo", exact=True, seed=int(seed))
    model = job.replicate(ByteGPT())
    optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=3e-3))
    loader = job.loader(
        StandardLibrary(), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True, seed=int(seed)
    )
    with open(pipe_path, "wb", buffering=0) as pipe:
        reporter = Reporter(pipe, job.rank)
        job.listen(reporter.hear)
        for step in job.steps(loader, total=int(steps)):
            with step:
                for batch in step:
                    loss = loss_of(model, batch)
                    loss.backward()  # type: ignore[no-untyped-call]
                    step.record(loss=loss)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        reporter.finished(model)


if __name__ == "__main__":
    main(*sys.argv[1:])

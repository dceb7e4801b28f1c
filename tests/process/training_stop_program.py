"""One replica under the launcher. Rank 1 stands still in a step.

training_stop_program.py FOLDER TOTAL STOP_AT
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from multiworld.training.job import join
from tests.process.training_programs import LR, Rows, flat, loss_of, make_model


def main(folder: Path, total: int, stop_at: int) -> None:
    torch.set_num_threads(1)
    job = join("stop", gather_s=60.0)  # on a busy machine one may start much later
    model = job.replicate(make_model())
    optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9))
    pid_of_stopped = folder / "stopped"
    did = []
    for step in job.steps(Rows(), total=total):
        with step:
            for _, inputs in step:
                loss_of(model, inputs).backward()  # type: ignore[no-untyped-call]
                if job.rank == 1 and step.index == stop_at and not pid_of_stopped.exists():
                    pid_of_stopped.write_text(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGSTOP)
            optimizer.step()
        if step.committed:
            did.append((step.index, time.monotonic()))
        time.sleep(0.03)
    said = {"rank": job.rank, "pid": os.getpid(), "did": did, "final": flat(model).tolist()}
    (folder / f"{job.rank}-{os.getpid()}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))

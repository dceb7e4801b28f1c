"""A model trained on another device than the CPU, such as PyTorch's lazy device. Started by the launcher.

training_device_program.py FOLDER KIND DEVICE BACKEND, where KIND is "replicas", "exact", "diloco", "pipelines" or
"placed": pipelines of a model that is built on the CPU. Rank 1 is killed once, in step KILLED_IN, and the others wait
for it in each step. Each process writes the last step's loss.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._lazy
import torch._lazy.ts_backend
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from multiworld import training
from multiworld.training.events import MembershipChanged
from multiworld.training.pipeline import opening
from multiworld.training.planning.uniform import uniform_profile

GLOBAL_BATCH, MICRO_BATCH, TOTAL, KILLED_IN = 16, 4, 24, 3
PAUSE_S = 0.4
LAYER_BYTES = 1000


def main() -> None:
    folder, kind, device, backend = Path(sys.argv[1]), *sys.argv[2:]
    if device == "lazy":
        torch._lazy.ts_backend.init()  # type: ignore[no-untyped-call]
    elif device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    stages = [nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 16), nn.Linear(16, 1)]
    is_piped = kind in ("pipelines", "placed")
    model = nn.Sequential(*stages).to("cpu" if kind == "placed" else device)
    job = training.join("t", backend=backend, exact=is_piped or kind == "exact", seed=0, progress=False)
    loader = job.loader(data, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True, seed=0)
    if is_piped:
        # Of a lazy tensor it is not known how much memory it takes, so the layers are not measured.
        vars(opening)["cached_profile"] = lambda *_, **__: uniform_profile(len(stages), layer_bytes=LAYER_BYTES)
        example = tuple(each[:MICRO_BATCH] for each in data.tensors)
        there = device if kind == "placed" else None
        memory_bytes = 4 * 2 * LAYER_BYTES
        pipe = job.pipeline(stages=list(model), example=example, loss=loss_of, memory_bytes=memory_bytes, device=there)
        optimizer = pipe.optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    else:
        job.replicate(model, sync=training.DiLoCo(every=2) if kind == "diloco" else None)
        optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    ranks: list[tuple[int, ...]] = []
    job.listen(lambda event: ranks.append(event.ranks) if isinstance(event, MembershipChanged) else None)
    for step in job.steps(loader, total=TOTAL):
        strike(step.index, folder)
        if step.index > KILLED_IN and len(ranks[-1]) < job.world_size:
            time.sleep(PAUSE_S)
        with step:
            if is_piped:
                pipe.forward_backward(step)
            else:
                for inputs, target in step:
                    loss = loss_of(model(inputs.to(device)), target.to(device))
                    loss.backward()  # type: ignore[no-untyped-call]
                    step.record(loss=loss)
            optimizer.step()
        if device == "lazy":
            torch._lazy.mark_step()  # else each step would compute what led to it once more
        last = step.values["loss"]
    (folder / f"{os.environ['RANK']}.loss").write_text(repr(last))


def strike(step: int, folder: Path) -> None:
    killed = folder / "killed"
    if step == KILLED_IN and os.environ["RANK"] == "1" and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


if __name__ == "__main__":
    main()

"""What the programs under measurement have in common: options, a journal, orders, and the digest of a model."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..elastic.journal import JournalWriter
from .orders import Orders
from .tasks import TASKS, Task

__all__ = ["Worker", "digest", "digest_of"]


class Worker:
    """One rank: its options, and what it tells the benchmark."""

    def __init__(self, parser: argparse.ArgumentParser, rank: int) -> None:
        parser.add_argument("--task", choices=TASKS, default="gpt")
        parser.add_argument("--steps", type=int, default=200)
        parser.add_argument("--global-batch", type=int, default=32)
        parser.add_argument("--micro-batch", type=int, default=2)
        parser.add_argument("--dropout", type=float, default=0.1)
        parser.add_argument("--journal", required=True)
        parser.add_argument("--orders", type=Path)
        parser.add_argument("--checkpoint", type=Path)
        parser.add_argument("--checkpoint-every", type=int, default=20)
        parser.add_argument("--pause-s", type=float, default=0.0, help="in each step")
        parser.add_argument("--ids", action="store_true", help="write down the samples")
        self.options = parser.parse_args()
        torch.set_num_threads(1)
        self.rank = rank
        self.task: Task = TASKS[self.options.task]
        self.journal = JournalWriter(self.options.journal, rank=rank)
        self.orders = Orders(self.options.orders, rank, self.journal)
        self.journal.write("begun")
        self._ids: dict[int, list[int]] = {}
        self._computed: dict[int, int] = {}

    def computes(self, step: int, indices: torch.Tensor, micro_batch: int | None = None) -> None:
        """A micro-batch of these samples is about to be computed for that step.

        ``micro_batch``: its number, where what counts is told by numbers: see ``counts``.
        """
        self._computed[step] = self._computed.get(step, 0) + 1
        if self.options.ids:
            if micro_batch is None:
                self._ids.setdefault(step, []).extend(indices.tolist())
            self.journal.write("computed", step=step, ids=indices.tolist(), micro_batch=micro_batch)

    def counts(self, step: int, micro_batches: Sequence[int]) -> None:
        """The step counts with these micro-batches, all members' together. Some may be computed before a loss."""
        if self.options.ids:
            self.journal.write("counted", step=step, micro_batches=sorted(micro_batches))

    def committed(self, step: int, *, replicas: int, loss: float | None = None, **more: Any) -> None:
        ids = self._ids.pop(step, [])
        computed = self._computed.pop(step, 0)
        fields = {
            "step": step,
            "replicas": replicas,
            "loss": loss,
            "computed": computed,
            "cpu": time.process_time(),
            **more,
        }
        self.journal.write("commit", **fields, **({"ids": ids} if ids else {}))

    def ended(self, model: nn.Module, **more: Any) -> None:
        usage = os.times()
        self.journal.write("ended", digest=digest(model), cpu_s=usage.user + usage.system, **more)

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """As the loop of many: one file, written beside the last one, which it then replaces."""
        path = self.options.checkpoint
        draft = path.with_suffix(".draft")
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
        draft.replace(path)

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Return the step to go on with."""
        if self.options.checkpoint is None or not self.options.checkpoint.exists():
            return 0
        state = torch.load(self.options.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        began = time.monotonic()
        self.journal.write("loaded", step=state["step"], took_s=time.monotonic() - began)
        return int(state["step"])


def digest(model: nn.Module) -> str:
    """Return a hash of all parameters and buffers, bit by bit."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def digest_of(state: Any) -> str:
    """Return a hash of all tensors and values of a nested state, bit by bit."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            found.update(repr(value).encode())

    add(state)
    return found.hexdigest()[:16]

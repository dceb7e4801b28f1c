"""Faults at an exact place of a step: the benchmark writes an order, and the process named in it strikes itself there.

A signal from outside comes at a random moment; phases of a millisecond would never be hit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..elastic.journal import JournalWriter

__all__ = ["ANY", "PHASES", "RECOVERY_PHASES", "Order", "Orders", "give_order"]

PHASES = ("forward", "backward", "all-reduce", "commit", "optimizer", "transfer", "receive")
"""``transfer``: a source sends its state to a newcomer; ``receive``: a newcomer waits for it."""

RECOVERY_PHASES = ("detect", "agree", "form", "redo", "transfer", "receive")
"""``detect``: it knows of the loss, and has told nobody. ``agree``: it has announced itself. ``form``: it knows the
next generation, whose world is not there yet. ``redo``: a forward of that generation."""

ANY = -1
"""The rank that is the first to reach a phase of a recovery."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """``ranks`` strike themselves with the signal in ``phase`` of the next step that they begin. Numbers grow.

    ``then``: another rank, or ``ANY``, and the phase of the recovery that follows in which it strikes itself.
    ``skip``: how often the phase is reached before in that step.
    """

    number: int
    ranks: Sequence[int]
    phase: str
    signum: int = signal.SIGKILL
    then: tuple[int, str] | None = None
    skip: int = 0
    slow: float = 1.0
    """Above 1: no signal, but ``phase`` (``data`` or ``backward``) takes that many times as long from now on."""


def give_order(path: Path, order: Order) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(order)))
    draft.replace(path)


class Orders:
    """The end of one rank. ``begin`` is called at each step's beginning, ``reach`` in each phase."""

    def __init__(self, path: Path | None, rank: int, journal: JournalWriter) -> None:
        self._path, self._rank, self._journal = path, rank, journal
        self._inode = 0
        self._step = -1
        self._armed: Order | None = None
        self._left = 0
        """How often the phase of the order is reached before the strike."""
        self._seen = 0
        self._is_redoing = False
        self._slow = ("", 1.0)
        last = self._read()  # of a time before this process
        self._seen = 0 if last is None else last.number

    @property
    def has_begun(self) -> bool:
        return self._step >= 0

    def begin(self, step: int) -> None:
        self._step = step
        order = self._read()
        if order is not None and order.number > self._seen:
            self._seen = order.number
            if self._rank in order.ranks and order.slow != 1.0:
                self._slow = (order.phase, order.slow)
                self._journal.write("strike", rank=self._rank, step=step, phase=order.phase, signum=0)
            elif self._rank in order.ranks:
                self._armed, self._left = order, order.skip
            elif order.then is not None and order.then[0] in (self._rank, ANY):
                self._armed, self._left = replace(order, phase=order.then[1]), 0

    def reach(self, phase: str) -> None:
        if phase == "receive":
            self._arm_newcomer()
        elif phase in RECOVERY_PHASES:  # the order may have come after this rank began its step
            self.begin(self._step)
        if self._armed is None or self._armed.phase != phase:
            return
        if self._left:
            self._left -= 1
            return
        order, self._armed = self._armed, None
        if order.then == (ANY, phase) and not self._is_first(order):
            return
        self._journal.write("strike", rank=self._rank, step=self._step, phase=phase, signum=order.signum)
        os.kill(os.getpid(), order.signum)

    def flip(self, model: nn.Module) -> None:
        """If that was ordered, flip one bit of one parameter: the rank goes on and knows nothing of it."""
        if self._armed is None or self._armed.phase != "flip":
            return
        self._armed = None
        parameter = next(iter(model.parameters()))
        bits = parameter.detach().view(torch.int32).view(-1)
        bits[bits.numel() // 2] ^= 1 << 12
        self._journal.write("strike", rank=self._rank, step=self._step, phase="flip", signum=0)

    def _arm_newcomer(self) -> None:
        """An order to a newcomer is older than its process; only one process obeys it."""
        self._inode = 0
        order = self._read()
        if order is None or self._path is None:
            return
        is_ordered = (order.phase == "receive" and self._rank in order.ranks) or order.then == (self._rank, "receive")
        if order.then == (ANY, "receive") or (is_ordered and self._is_first(order)):
            self._armed = replace(order, phase="receive")

    def _is_first(self, order: Order) -> bool:
        """Whether no other process has obeyed the order."""
        assert self._path is not None
        try:
            self._path.with_suffix(f".{order.number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def redo(self) -> None:
        """Reach ``redo`` in the next forward: the step is completed without those that were lost."""
        self._is_redoing = True

    def slows(self, part: str) -> bool:
        return self._slow[0] == part

    @contextlib.contextmanager
    def slowed(self, part: str) -> Iterator[None]:
        """What is done in the block takes ``slow`` times as long, once that was ordered for this part."""
        began = time.perf_counter()
        yield
        if self.slows(part):
            time.sleep((time.perf_counter() - began) * (self._slow[1] - 1))

    def watch(self, middle: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Reach ``forward`` and ``backward`` in the middle of the model, ``optimizer`` before its step."""
        self.watch_module(middle)
        self.watch_optimizer(optimizer)

    def watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(lambda *_: self.reach("optimizer"))

    def watch_module(self, module: nn.Module) -> None:
        """Reach ``forward`` and ``backward`` in it. With several, each of them counts for ``Order.skip``."""

        def forward(module: nn.Module, inputs: object, output: Any) -> None:
            self.reach("forward")
            if self._is_redoing:
                self._is_redoing = False
                self.reach("redo")
            if self._armed is not None and self._armed.phase == "backward":
                output.register_hook(lambda gradient: self.reach("backward"))

        module.register_forward_hook(forward)

    def _read(self) -> Order | None:
        if self._path is None:
            return None
        try:
            inode = os.stat(self._path).st_ino
        except FileNotFoundError:
            return None
        if inode == self._inode:
            return None
        self._inode = inode
        fields = json.loads(self._path.read_text())
        if fields["then"] is not None:
            fields["then"] = tuple(fields["then"])
        return Order(**fields)

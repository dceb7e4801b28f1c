"""What a job watches beside its steps; see ``training.Health``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from .bad_steps import LossSpike
from .slow_ranks import SlowRankPolicy

COMPARABLE: Final = ("parameters", "buffers", "optimizers")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Compute one micro-batch twice in one step of ``every``, and compare the gradients bit for bit.

    Both times with the same random numbers and buffers. So a difference means that a chip computed wrongly, or that the
    program is not deterministic. The loop over the step's micro-batches sees that batch twice.
    """

    every: int

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every={self.every!r}: expected a whole number from 1")


@dataclass(frozen=True, kw_only=True)
class Health:
    """``compare_every``: within so many steps everything that must be equal on all replicas is compared; 0: never.

    ``compare``: what that is, of ``"parameters"``, ``"buffers"`` and ``"optimizers"``. ``loss_spike``: which loss makes
    a step bad; None: none, only what is not finite. ``slow_ranks``: who is called slow; None: nobody.
    ``snapshot_every``: with ``on_bad_step="rollback"``, how many steps a rollback may lose.
    """

    compare_every: int = 50
    compare: Sequence[str] = ("parameters", "buffers")
    loss_spike: LossSpike | None = field(default_factory=LossSpike)
    slow_ranks: SlowRankPolicy | None = field(default_factory=SlowRankPolicy)
    snapshot_every: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.compare_every, int) or self.compare_every < 0:
            raise ValueError(f"compare_every={self.compare_every!r}: expected a whole number from 0")
        if not isinstance(self.snapshot_every, int) or self.snapshot_every < 1:
            raise ValueError(f"snapshot_every={self.snapshot_every!r}: expected a whole number from 1")
        unknown = [each for each in self.compare if each not in COMPARABLE]
        if unknown or isinstance(self.compare, str):
            raise ValueError(f"compare={self.compare!r}: expected some of {', '.join(map(repr, COMPARABLE))}")

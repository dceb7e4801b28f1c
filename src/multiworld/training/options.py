"""How a job trains: what ``training.join`` takes, checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..world.liveness import DEFAULT_LEASE_S
from .checkpoint.config import Checkpoint
from .health.bad_steps import ON_BAD_STEP, OnBadStep
from .health.options import Health, Replay

BATCHES = ("constant", "shrink", "drop")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a job trains; see ``join``."""

    name: str
    min_replicas: int = 1
    batch: str = "constant"
    exact: bool = False
    seed: int = 0
    backend: str = "auto"
    lease_s: float = DEFAULT_LEASE_S
    join_timeout_s: float = 600.0
    gather_s: float = 10.0
    checkpoint: Checkpoint | None = None
    record: str | None = None
    progress: bool = True
    replica_size: int = 1
    on_bad_step: OnBadStep | None = None
    replay: Replay | None = None
    health: Health = field(default_factory=Health)
    tolerate: int = 0

    def __post_init__(self) -> None:
        if self.on_bad_step is not None and self.on_bad_step not in ON_BAD_STEP:
            allowed = ", ".join(map(repr, ON_BAD_STEP))
            raise ValueError(f"on_bad_step={self.on_bad_step!r}: expected one of {allowed}, or None")
        if self.replay is not None and not isinstance(self.replay, Replay):
            raise TypeError(f"replay={self.replay!r}: expected training.Replay(every=...) or None")
        if not isinstance(self.name, str) or not self.name or "/" in self.name or len(self.name) > 100:
            raise ValueError(f"name={self.name!r}: expected 1 to 100 characters without '/'")
        if not isinstance(self.min_replicas, int) or self.min_replicas < 1:
            raise ValueError(f"min_replicas={self.min_replicas!r}: expected a whole number from 1")
        if not isinstance(self.tolerate, int) or self.tolerate < 0:
            raise ValueError(f"tolerate={self.tolerate!r}: expected a whole number from 0")
        if self.batch not in BATCHES:
            raise ValueError(f"batch={self.batch!r}: expected one of {', '.join(map(repr, BATCHES))}")
        if self.exact and self.batch != "constant":
            raise ValueError(f"exact=True needs batch='constant': with batch={self.batch!r} a loss changes the sums")

"""Resilient training: replicas that keep training while processes die.

``join`` is where a program begins; ``docs/training.md`` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    LoaderWorkerError,
    PeerRaisedError,
    PoisonedStepError,
    ReplicaBrokenError,
    SampleError,
    SetupError,
    StepError,
    TooFewReplicasError,
    TrainingError,
)

if TYPE_CHECKING:
    from .checkpoint.config import Checkpoint
    from .data.ledger import check_ledger
    from .data.opening import open_loader
    from .data.shards import Shards
    from .engine.step import Step
    from .job import Job, join
    from .sync.strategies import DiLoCo, LocalSGD

__all__ = [
    "Checkpoint",
    "DiLoCo",
    "Job",
    "LoaderWorkerError",
    "LocalSGD",
    "PeerRaisedError",
    "PoisonedStepError",
    "ReplicaBrokenError",
    "SampleError",
    "SetupError",
    "Shards",
    "Step",
    "StepError",
    "TooFewReplicasError",
    "TrainingError",
    "check_ledger",
    "join",
    "open_loader",
]

_LAZY = {  # these import torch, which takes a second
    "Checkpoint": ".checkpoint.config",
    "DiLoCo": ".sync.strategies",
    "Job": ".job",
    "LocalSGD": ".sync.strategies",
    "Shards": ".data.shards",
    "Step": ".engine.step",
    "check_ledger": ".data.ledger",
    "join": ".job",
    "open_loader": ".data.opening",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

"""Resilient training: replicas that keep training while processes die.

``join`` is where a program begins; ``docs/training.md`` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    PeerRaisedError,
    PoisonedStepError,
    ReplicaBrokenError,
    SetupError,
    StepError,
    TooFewReplicasError,
    TrainingError,
)

if TYPE_CHECKING:
    from .engine.step import Step
    from .job import Job, join
    from .sync.strategies import DiLoCo, LocalSGD

__all__ = [
    "DiLoCo",
    "Job",
    "LocalSGD",
    "PeerRaisedError",
    "PoisonedStepError",
    "ReplicaBrokenError",
    "SetupError",
    "Step",
    "StepError",
    "TooFewReplicasError",
    "TrainingError",
    "join",
]

_LAZY = {  # these import torch, which takes a second
    "DiLoCo": ".sync.strategies",
    "Job": ".job",
    "LocalSGD": ".sync.strategies",
    "Step": ".engine.step",
    "join": ".job",
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

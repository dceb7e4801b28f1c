"""Resilient training: replicas that keep training while processes die.

``join`` is where a program begins; ``docs/training.md`` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    PeerRaisedError,
    PoisonedStepError,
    SetupError,
    StepError,
    TooFewReplicasError,
    TrainingError,
)

if TYPE_CHECKING:
    from .engine.step import Step
    from .job import Job, join

__all__ = [
    "Job",
    "PeerRaisedError",
    "PoisonedStepError",
    "SetupError",
    "Step",
    "StepError",
    "TooFewReplicasError",
    "TrainingError",
    "join",
]

_LAZY = {  # these import torch, which takes a second
    "Job": ".job",
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

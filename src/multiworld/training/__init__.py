"""Resilient training: replicas that keep training while processes die.

``join`` is where a program begins; ``docs/training.md`` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    BadStepError,
    LoaderWorkerError,
    MiscomputingError,
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
    from .health.bad_steps import LossSpike
    from .health.notices import FileNotice, HttpNotice, ec2_spot_notice, gce_preemption_notice
    from .health.options import Health, Replay
    from .health.slow_ranks import SlowRankPolicy
    from .job import Job, join
    from .sync.strategies import DiLoCo, LocalSGD

__all__ = [
    "BadStepError",
    "Checkpoint",
    "DiLoCo",
    "FileNotice",
    "Health",
    "HttpNotice",
    "Job",
    "LoaderWorkerError",
    "LocalSGD",
    "LossSpike",
    "MiscomputingError",
    "PeerRaisedError",
    "PoisonedStepError",
    "Replay",
    "ReplicaBrokenError",
    "SampleError",
    "SetupError",
    "Shards",
    "SlowRankPolicy",
    "Step",
    "StepError",
    "TooFewReplicasError",
    "TrainingError",
    "check_ledger",
    "ec2_spot_notice",
    "gce_preemption_notice",
    "join",
    "open_loader",
]

_LAZY = {  # these import torch, which takes a second
    "Checkpoint": ".checkpoint.config",
    "DiLoCo": ".sync.strategies",
    "FileNotice": ".health.notices",
    "Health": ".health.options",
    "HttpNotice": ".health.notices",
    "Job": ".job",
    "LocalSGD": ".sync.strategies",
    "LossSpike": ".health.bad_steps",
    "Replay": ".health.options",
    "Shards": ".data.shards",
    "Step": ".engine.step",
    "SlowRankPolicy": ".health.slow_ranks",
    "check_ledger": ".data.ledger",
    "ec2_spot_notice": ".health.notices",
    "gce_preemption_notice": ".health.notices",
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

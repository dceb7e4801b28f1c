"""Elastic serving: a model cut in stages, one world per edge, whose replicas come and go while requests flow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..model.signature import Signature, TensorSpec
from .control.scaling import ScalingPolicy
from .errors import (
    BadRequestError,
    DeadlineExceededError,
    DeploymentError,
    GatewayClosedError,
    OverloadedError,
    PoisonedRequestError,
    RequestIdReusedError,
    RequestLostError,
    SequenceTooLongError,
    ServingError,
    StageFailedError,
    StageUnavailableError,
    StateLostError,
    UnknownStageError,
)
from .graph import GATEWAY, INPUT, Batch, Graph, Stage
from .ingress.admission import Admission
from .ingress.answers import Report
from .tracing import Tracing

if TYPE_CHECKING:
    from .deployment import Deployment
    from .pipeline import Cluster, Pipeline

__all__ = [
    "GATEWAY",
    "INPUT",
    "Admission",
    "BadRequestError",
    "Batch",
    "Cluster",
    "DeadlineExceededError",
    "Deployment",
    "DeploymentError",
    "GatewayClosedError",
    "Graph",
    "OverloadedError",
    "Pipeline",
    "PoisonedRequestError",
    "Report",
    "RequestIdReusedError",
    "RequestLostError",
    "ScalingPolicy",
    "SequenceTooLongError",
    "ServingError",
    "Signature",
    "Stage",
    "StageFailedError",
    "StageUnavailableError",
    "StateLostError",
    "TensorSpec",
    "Tracing",
    "UnknownStageError",
]

_LAZY = {"Cluster": ".pipeline", "Deployment": ".deployment", "Pipeline": ".pipeline"}  # these import torch


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module, __name__), name)
    globals()[name] = value
    return value

"""Cuts a model into the stages of a pipeline, of about equal cost as measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from ..model.cut import Part, cut, cut_parts, profile
from ..model.partition import LayerCost, Partition, partition
from .graph import Batch, Stage

__all__ = ["LayerCost", "Part", "Partition", "batch_of", "cut", "cut_parts", "partition", "profile", "stages_of"]


def batch_of(part: Part, wanted: Batch | Literal[False] | None) -> Batch | Literal[False] | None:
    """Return how the stage of a part batches: as wanted, but never if its requests cannot be concatenated."""
    return wanted if part.by_rows else False


def stages_of(
    module: nn.Module,
    example: Any,
    num_stages: int,
    *,
    name: str = "part",
    replicas: int | Sequence[int] = 1,
    max_param_bytes: int | None = None,
    **options: Any,
) -> list[Stage]:
    """Return a model as a chain of stages ``part0``, ``part1``, ...

    ``replicas``: of each stage, or one number per stage. ``options`` go to each ``Stage``; the default for its device
    is the one on which the model is. With ``batch``, only the first part may be one whose requests cannot be
    concatenated, and its stage gets no ``batch``. Raises as ``cut`` does.
    """
    counts = [replicas] * num_stages if isinstance(replicas, int) else list(replicas)
    if len(counts) != num_stages:
        raise ValueError(f"replicas={counts} has {len(counts)} numbers for {num_stages} stages")
    batch = options.pop("batch", None)
    parts = cut_parts(module, example, num_stages, max_param_bytes=max_param_bytes, by_rows=bool(batch))
    options.setdefault("device", str(next((value.device for value in module.parameters()), "cpu")))
    return [
        Stage(
            f"{name}{number}",
            part.module,
            replicas=count,
            batch=batch_of(part, batch),
            signature=part.signature,
            **options,
        )
        for number, (part, count) in enumerate(zip(parts, counts, strict=True))
    ]

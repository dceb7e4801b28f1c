"""Makes the stages of a pipeline of a model that is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from ..graph import Batch, Stage
from .cut import Part, cut_parts

__all__ = ["batch_of", "stages_of"]


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
    """Return a model as a chain of stages ``part0``, ``part1``, ...; ``options`` go to each ``Stage``; its device is by
    default the one on which the model is.

    ``replicas``: of each stage, or one number per stage. Parts whose requests cannot be concatenated never get a
    ``batch``; where one is asked for, only the first may be such a part. Raises as ``cut`` does.
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

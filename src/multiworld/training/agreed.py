"""What all ranks of a training must have in common. They compare it when they meet."""

from __future__ import annotations

from typing import Protocol

from .data.base import StepLoader
from .options import TrainingOptions
from .state import TrainingState


class Described(Protocol):
    """What a program has handed over: ``TrainedParts`` or ``PipelinedParts``."""

    def described(self) -> dict[str, object]:
        """Return what must be equal on all ranks, by part."""


def agreed(
    parts: Described, state: TrainingState, loader: StepLoader, options: TrainingOptions, *more: object
) -> dict[str, object]:
    """Return it by the name that an error gives it. ``more``: options that matter beside those that always do."""
    return {
        **parts.described(),
        "what is tracked": sorted(state.parts),
        "the data": loader.digest(),
        "the options": (options.exact, options.seed, *more),
        "the health": (options.on_bad_step, options.replay, options.health),
    }

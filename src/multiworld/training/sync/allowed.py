"""Decide whether a job's options go with semi-synchronous training. Pure but for the types."""

from __future__ import annotations

from ..options import TrainingOptions
from .strategies import DiLoCo, LocalSGD


def check_sync(sync: object, options: TrainingOptions) -> None:
    """Raises TypeError if it is no strategy, and ValueError that names the options which do not go with it."""
    if sync is None:
        return
    if not isinstance(sync, (LocalSGD, DiLoCo)):
        raise TypeError(f"sync={sync!r}: expected training.LocalSGD(...), training.DiLoCo(...) or None")
    if options.exact or options.batch != "constant":
        raise ValueError(
            f"sync={sync!r} does not go with exact=True or batch={options.batch!r}: replicas that compute "
            "their steps alone have gradients and micro-batches of their own"
        )
    if options.on_bad_step is not None or options.replay is not None:
        raise ValueError(f"sync={sync!r} does not go with on_bad_step or replay: they decide for all in each step")

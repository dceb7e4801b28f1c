"""What a host's workers can compute on, for people: read from the system, without a driver or torch."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

__all__ = ["describe_devices"]

NVIDIA = Path("/proc/driver/nvidia/gpus")


def describe_devices(nvidia: Path = NVIDIA) -> str:
    """Return for example ``8 × NVIDIA H100 80GB HBM3, 96 cores``."""
    models = Counter(_model(each) for each in sorted(nvidia.glob("*/information")))
    cores = len(os.sched_getaffinity(0))
    parts = [f"{count} × {model}" for model, count in models.items()]
    return ", ".join([*parts, f"{cores} core{'s' if cores > 1 else ''}"])


def _model(information: Path) -> str:
    try:
        lines = information.read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model")), "NVIDIA GPU")

"""Autoregressive generation over stages: states per sequence, continuous batching, and replay after a loss."""

from __future__ import annotations

from .alone import Alone
from .loop import Generator
from .sampling import Sampling
from .stage import Advance, GenerationStage
from .state import KeyValues

__all__ = ["Advance", "Alone", "GenerationStage", "Generator", "KeyValues", "Sampling"]

"""What a part of a cut model raises."""

from __future__ import annotations

from ..errors import ReasonError

__all__ = ["PayloadMismatchError"]


class PayloadMismatchError(ReasonError):
    """A payload does not fit the example for which the model was cut. Field: ``reason``, a sentence."""

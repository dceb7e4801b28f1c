"""What a part of a cut model raises."""

from __future__ import annotations

from ..errors import MultiworldError

__all__ = ["PayloadMismatchError"]


class PayloadMismatchError(MultiworldError):
    """A payload does not fit the example for which the model was cut. Field: ``reason``, a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason

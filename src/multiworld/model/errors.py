"""What a model that cannot be cut raises, and a part of a cut model."""

from __future__ import annotations

from ..errors import MultiworldError, ReasonError

__all__ = ["CutError", "PayloadMismatchError"]


class CutError(MultiworldError):
    """A model cannot be cut into layers to train it.

    Fields: ``model`` (its class), ``reason`` (a clause), ``place`` (the path of a part, a file and a line, as far as
    they are known; else empty).
    """

    STAGES = "the chain of stages"
    """What ``model`` is where the user has given the stages."""

    def __init__(self, model: str, reason: str, place: str = "") -> None:
        super().__init__(model, reason, place)
        self.model, self.reason, self.place = model, reason, place

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place else ""
        if self.model == self.STAGES:
            return f"{self.model} cannot be trained as layers{at}: {self.reason}"
        return (
            f"{self.model} cannot be cut into layers{at}: {self.reason}. Mend that, or give the stages yourself: "
            "stages=[embed, *blocks, head], modules each of which takes the tensors that the one before it returns"
        )


class PayloadMismatchError(ReasonError):
    """A payload does not fit the example for which the model was cut. Field: ``reason``, a sentence."""

"""What the stages of many pipelines take."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Bools, Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Pipelines:
    """Of one micro-batch, [num_stages, num_pipelines].

    A pipeline with fewer stages than others has stages without work in front: such a stage delays nothing.
    ``transfers_s``: to the next stage, one way; those of the last are not used. ``limits``: how many micro-batches may
    be between forward and backward, falling by at most one from stage to stage. ``weights_s``: what a split backward
    puts off, not part of ``backward_s``; 0 where it is not split. ``put_off``: for how many micro-batches.
    """

    forward_s: Floats
    backward_s: Floats
    transfers_s: Floats
    limits: Ints
    weights_s: Floats
    put_off: Ints

    def of(self, pipelines: Bools | Ints) -> Pipelines:
        """Return some of them."""
        return Pipelines(
            forward_s=self.forward_s[:, pipelines],
            backward_s=self.backward_s[:, pipelines],
            transfers_s=self.transfers_s[:, pipelines],
            limits=self.limits[:, pipelines],
            weights_s=self.weights_s[:, pipelines],
            put_off=self.put_off[:, pipelines],
        )

    @property
    def is_split(self) -> bool:
        """Whether any of them puts off gradients of weights."""
        return bool(self.weights_s.any())

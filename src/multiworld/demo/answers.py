"""Compare every answer of the pipeline with what the whole model says about the same images in a single process."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Checker:
    """Request ``n`` carries micro-batch ``n % len(reference)``; ``reference`` holds its logits ``[batch, 10]``.

    A micro-batch is the unit on both sides: with the same composition the logits are equal to the last bit.
    """

    def __init__(self, reference: Sequence[torch.Tensor], labels: Sequence[torch.Tensor]) -> None:
        if not reference or [len(logits) for logits in reference] != [len(part) for part in labels]:
            raise ValueError("reference and labels must be cut into the same micro-batches, at least one")
        self._reference, self._labels = list(reference), list(labels)
        self.num_images = 0
        self.num_correct = 0
        self.num_correct_single_process = 0
        self.num_different = 0
        self.max_logit_difference = 0.0

    def images_in(self, request: int) -> int:
        """Return how many images the request carries."""
        return len(self._labels[request % len(self._labels)])

    def check(self, request: int, logits: torch.Tensor) -> None:
        """Count the answer ``[batch, 10]``; one of the wrong shape raises ``ValueError``."""
        reference, labels = self._reference[request % len(self._reference)], self._labels[request % len(self._labels)]
        if logits.shape != reference.shape:
            raise ValueError(f"request {request} was answered by {list(logits.shape)}, not {list(reference.shape)}")
        predictions, expected = logits.argmax(dim=1), reference.argmax(dim=1)
        self.num_images += len(labels)
        self.num_correct += int((predictions == labels).sum())
        self.num_correct_single_process += int((expected == labels).sum())
        is_broken = ~logits.isfinite().all(dim=1)  # of which the maximum says nothing
        self.num_different += int(((predictions != expected) | is_broken).sum())
        self.max_logit_difference = max(self.max_logit_difference, float((logits - reference).abs().max()))

    @property
    def accuracy(self) -> float:
        """The share of answered images that the pipeline recognized."""
        return self.num_correct / self.num_images if self.num_images else 0.0

    @property
    def accuracy_single_process(self) -> float:
        """The share of the same images that the whole model recognizes in one process."""
        return self.num_correct_single_process / self.num_images if self.num_images else 0.0

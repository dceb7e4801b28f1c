"""The layers of a stage, computed one after the other on its device, with the loss behind the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...model.layers import LayeredModel
from ..engine.seeds import seed_of, seed_torch
from .assignment import Role

Loss = Callable[[Any, Any], Tensor]
"""Called with the model's output and the target (see ``model.layers.target_of``); returns the mean over the samples."""


class LayeredStage:
    """See ``StageModel``. ``seed``: of the random numbers of each layer and micro-batch, so that they do not depend on
    who computes them; None: the program's own random numbers.
    """

    def __init__(self, model: LayeredModel, loss: Loss, device: torch.device, *, seed: int | None = None) -> None:
        self._model, self._loss, self._device, self._seed = model, loss, device, seed

    def here(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [each.to(self._device) for each in tensors]

    def inputs_of(self, batch: Any) -> tuple[Tensor, ...]:
        return self._model.inputs_of(batch, self._device)

    def needs_gradient(self, layer: int) -> Sequence[bool]:
        crossings = self._model.layers[layer - 1].outputs
        assert crossings is not None, "nothing is behind the last layer"
        return [each.needs_grad for each in crossings]

    def forward(self, role: Role, step: int, micro_batch: int, inputs: tuple[Tensor, ...]) -> Any:
        values: Any = inputs
        for layer in role.layers:
            if self._seed is not None:
                seed_torch(seed_of(seed_of(self._seed, step, micro_batch), layer, 0))
            module = self._model.layers[layer].module
            if role.recompute and layer != len(self._model.layers) - 1:
                values = checkpoint(module, *values, use_reentrant=False)
            else:
                values = module(*values)
        return values

    def loss(self, output: Any, batch: Any) -> Tensor:
        return self._loss(output, self._model.target_of(batch, self._device))

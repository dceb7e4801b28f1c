"""A model whose losses and parameters tell which samples were summed up in which steps, and what they must be.

All numbers are whole, so no sum depends on its order. Each step moves a parameter by a value that depends on all steps
before, so that a layer which missed a step, or had one twice, differs for ever.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from multiworld.model.layers.layer import Crossing, LayeredModel, ModelLayer
from multiworld.training.data.base import StepLoader
from multiworld.training.data.map_loader import MapLoader
from multiworld.training.data.opening import open_loader

NUM_LAYERS, NUM_MICRO_BATCHES, NUM_SAMPLES, NUM_BINS = 5, 4, 96, 16
MODULUS, FACTOR = 2**40 - 87, 1103
CALLS = "calls"
Pause = Callable[[str], None]
"""Takes some time, and says what for."""


class Bins:
    """A dataset: of sample i, which bin of the parameters it falls into."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index * 7 % NUM_BINS


def collate(samples: list[int]) -> list[Tensor]:
    """Return the bin, one-hot ``[NUM_BINS]`` float64, and what the loss is multiplied with."""
    picked = torch.zeros(NUM_BINS, dtype=torch.float64)
    for each in samples:
        picked[each] += 1
    return [picked, torch.ones(1, dtype=torch.float64)]


def loader_of(seed: int) -> MapLoader:
    loader = open_loader(
        Bins(), global_batch=NUM_MICRO_BATCHES, micro_batch=1, shuffle=True, seed=seed, collate_fn=collate
    )
    return cast(MapLoader, loader)


class Layer(nn.Module):
    """``hidden`` ``[1]`` is doubled, and what the sample's bin has is added. ``calls`` counts the micro-batches."""

    calls: Tensor

    def __init__(self, weight: nn.Parameter, pause: Pause) -> None:
        super().__init__()
        self.weight = weight
        weight.register_hook(self._weights)  # type: ignore[no-untyped-call]
        self.pause = pause
        self.register_buffer(CALLS, torch.zeros(1, dtype=torch.float64))

    def forward(self, hidden: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
        self.pause("forward")
        self.calls += 1
        result = 2 * hidden + functional.linear(picked.unsqueeze(0), self.weight).squeeze(0)
        if result.requires_grad:
            result.register_hook(self._backward)  # type: ignore[no-untyped-call]
        return result, picked

    def _backward(self, _: Tensor) -> None:
        self.pause("backward")

    def _weights(self, _: Tensor) -> None:
        self.pause("weights")


class First(Layer):
    def forward(self, picked: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(torch.zeros(1, dtype=torch.float64), picked)


class Last(Layer):
    def forward(self, hidden: Tensor, picked: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(hidden, picked)[0]


def layers_of_chain(pause: Pause) -> LayeredModel:
    """Return the layers; the first and the last one have the same parameter."""
    weights = [
        nn.Parameter(torch.full((1, NUM_BINS), float(number), dtype=torch.float64)) for number in range(NUM_LAYERS)
    ]
    names = [f"{number}.weight" for number in range(NUM_LAYERS)]
    weights[-1], names[-1] = weights[0], names[0]
    kinds = [First, *[Layer] * (NUM_LAYERS - 2), Last]
    modules = [kind(weight, pause) for kind, weight in zip(kinds, weights, strict=True)]
    picked = Crossing((NUM_BINS,), torch.float64, False)
    between = (Crossing((1,), torch.float64, True), picked)
    layers = tuple(
        ModelLayer(
            name=str(number),
            module=module,
            parameters={names[number]: module.weight},
            buffers={f"{number}.{CALLS}": module.calls},
            outputs=between if number + 1 < NUM_LAYERS else None,
        )
        for number, module in enumerate(modules)
    )
    return LayeredModel("chain", layers, (picked,), "chain", lambda batch: (batch[0],))


def loss_of(output: Tensor, factor: Tensor) -> Tensor:
    return (output * factor).sum()


class History(Optimizer):
    """Keeps for each parameter a number that follows from all of its gradients, and moves it by a part of that."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["history"] = torch.zeros((1, NUM_BINS), dtype=torch.int64)
                    state["steps"] = torch.zeros(1, dtype=torch.int64)
                gradient = (parameter.grad * NUM_MICRO_BATCHES).round().to(torch.int64)
                state["history"] = (state["history"] * FACTOR + gradient + 1) % MODULUS
                state["steps"] = state["steps"] + 1
                parameter += (state["history"] % 1000).to(torch.float64) - gradient.to(torch.float64)


class SlowLoader:
    """A ``StepLoader`` that takes its time."""

    def __init__(self, loader: MapLoader, pause: Pause) -> None:
        self._loader, self._pause = loader, pause
        self.global_batch, self.micro_batch = loader.global_batch, loader.micro_batch
        self.num_micro_batches = loader.num_micro_batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for number, batch in self._loader.fetch(step, micro_batches):
            self._pause("data")
            yield number, batch

    def as_loader(self) -> StepLoader:
        return cast(StepLoader, self)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An undisturbed training. ``losses``: of each step. ``states``: by step, and by the name of a parameter or buffer,
    before that step: its values and, of a parameter, its history.
    """

    losses: list[float]
    states: list[dict[str, tuple[list[float], list[int]]]]


@functools.lru_cache(maxsize=4)
def reference(seed: int, num_steps: int) -> Reference:
    model = layers_of_chain(lambda what: None)
    parameters = dict(model.parameters())
    buffers = {name: each for layer in model.layers for name, each in layer.buffers.items()}
    optimizer, loader = History(list(parameters.values())), loader_of(seed)
    losses, states = [], [state_of(parameters, buffers, optimizer)]
    for step in range(num_steps):
        calls = {name: each.clone() for name, each in buffers.items()}
        of_step = []
        optimizer.zero_grad()
        for _, batch in loader.fetch(step, range(NUM_MICRO_BATCHES)):
            values: Any = model.inputs_of(batch)
            for layer in model.layers:
                values = layer.module(*values)
            loss = loss_of(values, batch[-1])
            loss.backward()  # type: ignore[no-untyped-call]
            of_step.append(float(loss.detach()))
        for parameter in parameters.values():
            assert parameter.grad is not None
            parameter.grad /= NUM_MICRO_BATCHES
        for name, each in buffers.items():
            each.copy_(calls[name] + 1)
        optimizer.step()
        losses.append(math.fsum(of_step) / len(of_step))
        states.append(state_of(parameters, buffers, optimizer))
    return Reference(losses=losses, states=states)


def state_of(
    parameters: dict[str, nn.Parameter], buffers: dict[str, Tensor], optimizer: Optimizer
) -> dict[str, tuple[list[float], list[int]]]:
    state: dict[str, tuple[list[float], list[int]]] = {}
    for name, parameter in parameters.items():
        kept = optimizer.state.get(parameter, {})
        history = [*kept["history"].flatten().tolist(), *kept["steps"].tolist()] if kept else []
        state[name] = parameter.detach().flatten().tolist(), history
    return state | {name: (each.tolist(), []) for name, each in buffers.items()}

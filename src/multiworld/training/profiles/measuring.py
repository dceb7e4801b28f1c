"""Runs each layer forward and backward, and measures its times and memory."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ...model.layers import LayeredModel, ModelLayer
from ...model.layers.trial import left_as_it_was
from ...model.structure import taken_apart
from ..planning.profile import LayerCost, Profile
from ..split_backward.catching import Catching
from ..split_backward.put_off import PutOff
from .placing import placed
from .saved_memory import saved_bytes_counted
from .stopwatch import Shortest, Stopwatch

ADAMW_STATES = 2
"""Tensors of a parameter's size that AdamW holds for each parameter."""
RUNS = 5
MOST_RUNS = 100
Loss = Callable[[Any, Any], torch.Tensor]


def measure_layers(
    layered: LayeredModel,
    batch: Any,
    *,
    loss: Loss | None = None,
    optimizer_states: int = ADAMW_STATES,
    device: torch.device | None = None,
    runs: int = RUNS,
    limit_s: float = math.inf,
) -> Profile:
    """Measure each layer with a micro-batch on a device; None: the one that the model is on.

    A layer that is elsewhere is copied there while it is run, one after the other.

    The times are the shortest: other load can only add time. All layers are run in turn, so that load which lasts for
    a while meets all of them, until the last ``runs`` runs of each layer were not shorter. No further runs begin after
    ``limit_s`` seconds; each layer is run twice at least. See ``Stopwatch`` for what counts as a time.

    ``loss(output, target)``: its time and memory count as the last layer's. ``optimizer_states``: tensors of its size
    that the optimizer holds for each parameter; gradients are counted once. A weight that several layers use is counted
    in each of them. Parameters, gradients, buffers and random numbers stay as they are.

    Processes that measure at the same time disturb each other, and get different times: let one measure for all.
    """
    ends = time.monotonic() + limit_s
    if runs < 1 or optimizer_states < 0:
        raise ValueError(f"runs={runs}, optimizer_states={optimizer_states}: expected 1 or more, and 0 or more")
    device = layered.home if device is None else device
    inputs = layered.inputs_of(batch, device)
    modules = [layer.module for layer in layered.layers]
    gradients = [(value, value.grad) for value in layered.parameters().values()]
    trials: list[_LayerTrial] = []
    values: Sequence[torch.Tensor] = [each.clone() for each in inputs]  # a part of a dataset would count as all of it
    for parameter, _ in gradients:
        parameter.grad = None  # the measurement would add to it
    try:
        with left_as_it_was(modules, inputs), contextlib.closing(Stopwatch()) as watch:
            for layer in layered.layers:
                of_loss = None
                if loss is not None and layer.outputs is None:
                    of_loss = _with_target(loss, layered, batch, device)
                trials.append(_LayerTrial(layer, values, of_loss, device, watch))
                trials[-1].begin()
                values = trials[-1].next_values()
            _run_in_turn(trials, runs, ends)
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
    layers = tuple(each.cost(optimizer_states) for each in trials)
    return Profile(model=layered.name, micro_batch=_num_rows(inputs), layers=layers)


def _run_in_turn(trials: Sequence[_LayerTrial], runs: int, ends: float) -> None:
    """Run all layers until the times of all have settled, or until ``ends``, once at least."""
    for number in range(MOST_RUNS):
        for each in trials:
            if number and time.monotonic() >= ends:
                return
            each.run()
        if all(each.runs_in_vain >= runs for each in trials):
            return


def _with_target(loss: Loss, layered: LayeredModel, batch: Any, device: torch.device) -> Callable[[Any], torch.Tensor]:
    target = layered.target_of(batch, device)
    return lambda output: loss(output, target)


def _num_rows(inputs: Sequence[torch.Tensor]) -> int:
    return inputs[0].shape[0] if inputs[0].dim() else 1


class _LayerTrial:
    """One layer with what it is called with. ``finish``: what is computed of its output."""

    def __init__(
        self,
        layer: ModelLayer,
        values: Sequence[torch.Tensor],
        finish: Callable[[Any], torch.Tensor] | None,
        device: torch.device,
        watch: Stopwatch,
    ) -> None:
        self._layer, self._finish, self._watch = layer, finish, watch
        self._given = [value.detach().requires_grad_(value.requires_grad) for value in values]
        self._trained = [value for value in layer.parameters.values() if value.requires_grad]
        self._gradients: list[torch.Tensor] = []
        self._device = device
        self._activation_bytes = self._put_off_bytes = 0
        self._shortest = Shortest(4)
        """Of a forward, of a backward, of both if the backward is split, but for its last part, and of that part."""

    @property
    def runs_in_vain(self) -> int:
        return self._shortest.in_vain

    def begin(self) -> None:
        """Count what is held, and run once without a clock: the first run sets up memory and threads."""
        with self._placed():
            self._begin()

    @contextlib.contextmanager
    def _placed(self) -> Iterator[None]:
        with placed(self._layer.module, self._device):
            yield
            for value in self._trained:
                value.grad = None

    def _begin(self) -> None:
        with saved_bytes_counted((*self._layer.parameters.values(), *self._layer.buffers.values())) as saved_bytes:
            self._forward()
            self._activation_bytes = saved_bytes()
        put_off = PutOff()
        with Catching(put_off):
            roots = self._forward()
        self._backward(roots)
        self._put_off_bytes = put_off.size_bytes

    def run(self) -> None:
        with self._placed():
            forward_s, backward_s, _ = self._timed(split=False)
            again_s, inputs_s, weights_s = self._timed(split=True)
        self._shortest.take((min(forward_s, again_s), backward_s, again_s + inputs_s, weights_s))

    def cost(self, optimizer_states: int) -> LayerCost:
        layer = self._layer
        forward_s, backward_s, until_weights_s, weights_s = self._shortest.times_s
        saved_s = max(forward_s + backward_s - until_weights_s, 0.0)  # what a split costs is not put off
        weights = _size_bytes(layer.parameters.values())
        trained, buffers = _size_bytes(self._trained), _size_bytes(layer.buffers.values())
        return LayerCost(
            name=layer.name,
            forward_s=forward_s,
            backward_s=backward_s,
            weight_backward_s=min(saved_s, weights_s, backward_s),
            state_bytes=weights + trained * (1 + optimizer_states) + buffers,
            move_bytes=weights + trained * optimizer_states + buffers,
            activation_bytes=self._activation_bytes,
            put_off_bytes=self._put_off_bytes,
            output_bytes=sum(each.size_bytes for each in layer.outputs or ()),
        )

    def next_values(self) -> list[torch.Tensor]:
        """Return what the next layer is called with, each tensor with whether it needs a gradient."""
        if self._layer.outputs is None:
            return []
        with torch.no_grad(), self._placed():
            made = self._layer.module(*self._given)
        return [
            value.detach().requires_grad_(crossing.needs_grad)
            for value, crossing in zip(made, self._layer.outputs, strict=True)
        ]

    def _timed(self, *, split: bool) -> tuple[float, float, float]:
        """Return the times of a forward, and of a backward or its two parts."""
        put_off = PutOff()
        self._synchronize()
        begun = self._watch.now()
        with Catching(put_off) if split else nullcontext():
            roots = self._forward()
        self._synchronize()
        between = self._watch.now()
        self._backward(roots)
        self._synchronize()
        behind = self._watch.now()
        if put_off.is_empty:
            return between.since(begun), behind.since(between), 0.0
        put_off.compute()
        self._synchronize()
        return between.since(begun), behind.since(between), self._watch.now().since(behind)

    def _forward(self) -> list[torch.Tensor]:
        for value in (*self._given, *self._trained):
            value.grad = None
        with torch.enable_grad():
            made = self._layer.module(*self._given)
            made = made if self._finish is None else self._finish(made)
        if self._layer.outputs is not None:
            return [value for value, each in zip(made, self._layer.outputs, strict=True) if each.needs_grad]
        return [value for value in taken_apart(made)[0] if value.requires_grad]

    def _backward(self, roots: list[torch.Tensor]) -> None:
        roots = [each for each in roots if each.requires_grad]
        if roots:
            torch.autograd.backward(roots, self._ones(roots))

    def _ones(self, roots: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return gradients of the outputs. They are made once: in a training, the next layer makes them."""
        if not self._gradients:
            self._gradients = [torch.ones_like(root) for root in roots]
        return self._gradients

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def _size_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)

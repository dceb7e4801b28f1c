"""One step of one stage: forwards and backwards in the order of the schedule, with its neighbours and its data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ...world.world import World
from ..health.timing import BACKWARD, DATA, FORWARD, WAIT, StepTimer
from ..planning.operations import Kind, Operation
from .assignment import Role
from .boundary import BACKWARD_TAG, FORWARD_TAG, Incoming, Outgoing, gradients_of, received


class StageModel(Protocol):
    """The layers of a stage, and what is before the first and behind the last layer of the model."""

    def inputs_of(self, batch: Any) -> tuple[Tensor, ...]:
        """Return what the first layer is called with."""

    def needs_gradient(self, layer: int) -> Sequence[bool]:
        """Return, for each tensor that goes into this layer, whether its gradient goes back."""

    def forward(self, role: Role, step: int, micro_batch: int, inputs: tuple[Tensor, ...]) -> Any:
        """Compute the stage's layers: the tensors for the next stage, or the model's output."""

    def loss(self, output: Any, batch: Any) -> Tensor:
        """Return the loss of one micro-batch, a tensor with one element."""


class StageObserver(Protocol):
    """Collects what the stage's micro-batches give."""

    def begin_forward(self, micro_batch: int) -> None: ...

    def end_forward(self, micro_batch: int) -> None: ...

    def begin_backward(self, micro_batch: int) -> None: ...

    def end_backward(self, micro_batch: int) -> None: ...

    def lost(self, micro_batch: int, loss: float) -> None:
        """The last stage: the loss of a micro-batch that is finished."""


@dataclass
class _InFlight:
    """A micro-batch between its forward and its backward: ``outputs`` are what it is gone backward from."""

    inputs: tuple[Tensor, ...]
    outputs: Sequence[Tensor] = ()
    loss: Tensor | None = field(default=None)


class StageRun:
    """``places``: by member id, its rank in ``world``. ``check``: raises if a world broke, between two operations."""

    def __init__(
        self,
        role: Role,
        model: StageModel,
        world: World,
        places: Callable[[str], int],
        observer: StageObserver,
        timer: StepTimer,
        check: Callable[[], None],
    ) -> None:
        self._role, self._model, self._observer = role, model, observer
        self._timer, self._check = timer, check
        count = len(role.micro_batches)
        self._from_previous = self._to_previous = self._from_next = self._to_next = None
        if role.previous:
            place = places(role.previous)
            self._from_previous = Incoming(world, place, FORWARD_TAG, count)
            self._to_previous = Outgoing(world, place, BACKWARD_TAG)
        if role.next:
            place = places(role.next)
            self._to_next = Outgoing(world, place, FORWARD_TAG)
            self._from_next = Incoming(world, place, BACKWARD_TAG, count)
        self._in_flight: dict[int, _InFlight] = {}

    def run(self, step: int, batches: Iterator[tuple[int, Any]], order: Sequence[Operation]) -> None:
        """Do all of a step. Micro-batches in ``order`` are places in ``role.micro_batches``. Raises world errors."""
        for kind, _, place in order:
            self._check()
            number = self._role.micro_batches[place]
            if kind is Kind.FORWARD:
                self._forward(step, number, batches)
            else:
                self._backward(number)
        self._timer.enter(WAIT)
        for outgoing in (self._to_next, self._to_previous):
            if outgoing is not None:
                outgoing.wait()

    def _forward(self, step: int, number: int, batches: Iterator[tuple[int, Any]]) -> None:
        batch = None
        if self._role.read:
            self._timer.enter(DATA)
            at, batch = next(batches)
            assert at == number, "the loader yields micro-batches in the order in which they are asked for"
        if self._from_previous is None:
            inputs = self._model.inputs_of(batch)
        else:
            self._timer.enter(WAIT)
            inputs = received(self._from_previous.take(), self._model.needs_gradient(self._role.first))
        self._timer.enter(FORWARD)
        self._observer.begin_forward(number)
        output = self._model.forward(self._role, step, number, inputs)
        present = self._in_flight[number] = _InFlight(inputs)
        if self._to_next is None:
            present.loss = self._model.loss(output, batch)
            self._observer.end_forward(number)
        else:
            self._observer.end_forward(number)
            needed = self._model.needs_gradient(self._role.end)
            self._to_next.put(output)
            present.outputs = [each for each, wanted in zip(output, needed, strict=True) if wanted]

    def _backward(self, number: int) -> None:
        present = self._in_flight.pop(number)
        gradients: list[Tensor] | None = None
        if self._from_next is not None:
            self._timer.enter(WAIT)
            gradients = self._from_next.take()
        self._timer.enter(BACKWARD)
        self._observer.begin_backward(number)
        if present.loss is not None:
            present.loss.backward()  # type: ignore[no-untyped-call]
            self._observer.lost(number, float(present.loss.detach()))
        else:
            pairs = [
                (output, gradient)
                for output, gradient in zip(present.outputs, gradients or (), strict=True)
                if output.requires_grad
            ]
            torch.autograd.backward([each for each, _ in pairs], [each for _, each in pairs])
        if self._to_previous is not None:
            self._to_previous.put(gradients_of(present.inputs))
        self._observer.end_backward(number)

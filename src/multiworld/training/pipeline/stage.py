"""One step of one stage: forwards and backwards in the order of the schedule, with its neighbours and its data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ...world.world import World
from ..health.timing import BACKWARD, DATA, FORWARD, WAIT, StepTimer
from ..planning.operations import Kind
from ..split_backward.catching import Catching
from ..split_backward.put_off import PutOff
from .assignment import Role
from .boundary import Incoming, Outgoing, gradients_of, received
from .work import Task, Work


class StageModel(Protocol):
    """The layers of a stage, and what is before the first and behind the last layer of the model."""

    def here(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return these, which came from another member, on the device of the layers."""

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

    def put_off(self, micro_batch: int, weights: PutOff) -> None:
        """Its backward has come so far: gradients of weights are missing. Others may come before ``begin_weights``."""

    def begin_weights(self, micro_batch: int) -> None: ...

    def end_backward(self, micro_batch: int) -> None:
        """All of its gradients are there."""

    def lost(self, micro_batch: int, loss: float) -> None:
        """The last stage: the loss of a micro-batch that is finished."""


@dataclass
class _InFlight:
    """A micro-batch between its forward and the end of its backward: ``outputs`` are what it is gone backward from.

    ``weights``: if its backward is split.
    """

    inputs: tuple[Tensor, ...]
    weights: PutOff | None
    outputs: Sequence[Tensor] = ()
    loss: Tensor | None = field(default=None)


class StageRun:
    """``places``: by member id, its rank in ``world``. ``check``: raises if a world broke, between two operations.

    ``exact``: a split backward gives the same bits as a whole one.
    """

    def __init__(
        self,
        role: Role,
        work: Work,
        model: StageModel,
        world: World,
        places: Callable[[str], int],
        observer: StageObserver,
        timer: StepTimer,
        check: Callable[[], None],
        *,
        exact: bool = False,
    ) -> None:
        self._role, self._work, self._model, self._observer = role, work, model, observer
        self._timer, self._check = timer, check
        self._incoming = {
            (each.kind, each.source): Incoming(world, places(each.source), each) for each in work.arrivals
        }
        self._outgoing = {
            (kind, member): Outgoing(world, places(member), kind)
            for kind, member in dict.fromkeys((each.kind, each.destination) for each in work.tasks if each.destination)
        }
        self._in_flight: dict[int, _InFlight] = {}
        self._split, self._exact = work.split, exact

    def run(self, step: int, batches: Iterator[tuple[int, Any]]) -> None:
        """Do all of a step. ``batches``: of the micro-batches in the order of their forwards. Raises world errors."""
        for task in self._work.tasks:
            self._check()
            if task.kind is Kind.FORWARD:
                self._forward(step, task, batches)
            elif task.kind is Kind.BACKWARD:
                self._backward(task)
            else:
                self._weights(task)
        self._timer.enter(WAIT)
        for outgoing in self._outgoing.values():
            outgoing.wait()

    def _forward(self, step: int, task: Task, batches: Iterator[tuple[int, Any]]) -> None:
        batch, number = None, task.micro_batch
        if self._role.reads:
            self._timer.enter(DATA)
            at, batch = next(batches)
            assert at == number, "the loader yields micro-batches in the order in which they are asked for"
        if not task.source:
            inputs = self._model.inputs_of(batch)
        else:
            inputs = received(self._taken(task), self._model.needs_gradient(self._role.first))
        self._timer.enter(FORWARD)
        self._observer.begin_forward(number)
        weights = PutOff(exact=self._exact) if number in self._split else None
        present = self._in_flight[number] = _InFlight(inputs, weights)
        with nullcontext() if weights is None else Catching(weights):
            output = self._model.forward(self._role, step, number, inputs)
        if not task.destination:
            present.loss = self._model.loss(output, batch)
            self._observer.end_forward(number)
        else:
            self._observer.end_forward(number)
            needed = self._model.needs_gradient(self._role.end)
            self._outgoing[task.kind, task.destination].put(output)
            present.outputs = [each for each, wanted in zip(output, needed, strict=True) if wanted]

    def _backward(self, task: Task) -> None:
        present = self._in_flight[task.micro_batch]
        gradients = self._taken(task) if task.source else []
        self._timer.enter(BACKWARD)
        self._observer.begin_backward(task.micro_batch)
        if present.loss is not None:
            present.loss.backward()  # type: ignore[no-untyped-call]
        else:
            pairs = [
                (output, gradient)
                for output, gradient in zip(present.outputs, gradients, strict=True)
                if output.requires_grad
            ]
            torch.autograd.backward([each for each, _ in pairs], [each for _, each in pairs])
        if task.destination:
            self._outgoing[task.kind, task.destination].put(gradients_of(present.inputs))
        if present.weights is None:
            self._end_backward(task.micro_batch)
        else:
            present.inputs, present.outputs = (), ()
            self._observer.put_off(task.micro_batch, present.weights)

    def _weights(self, task: Task) -> None:
        weights = self._in_flight[task.micro_batch].weights
        assert weights is not None, "a backward with a weight operation behind it is split"
        self._timer.enter(BACKWARD)
        self._observer.begin_weights(task.micro_batch)
        weights.compute()
        self._end_backward(task.micro_batch)

    def _end_backward(self, micro_batch: int) -> None:
        loss = self._in_flight.pop(micro_batch).loss
        self._observer.end_backward(micro_batch)
        if loss is not None:  # last: where sending fails, neither the gradients nor the loss counts
            self._observer.lost(micro_batch, float(loss.detach()))

    def _taken(self, task: Task) -> list[Tensor]:
        self._timer.enter(WAIT)
        return self._model.here(self._incoming[task.kind, task.source].take(task.micro_batch))

"""What a program sees of its pipelines: this process's optimizer, and its part of each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from ..engine.step import Step

if TYPE_CHECKING:
    from ...model.layers import LayeredModel
    from ..planning.templates import Templates
    from .assignment import Assignment
    from .parts import PipelinedParts


class Pipe:
    """Made by ``Job.pipeline``. Which layers this process has changes when members are lost and come."""

    def __init__(
        self,
        parts: PipelinedParts,
        templates: Templates,
        add_optimizer: Callable[[Optimizer], None],
        present: Callable[[], tuple[Assignment, str] | None],
    ) -> None:
        self.templates = templates
        """Of which pipelines are made: their sizes, stages and predicted times."""
        self._parts, self._add_optimizer, self._present = parts, add_optimizer, present

    def __repr__(self) -> str:
        present = self._present()
        if present is None:
            return f"<Pipe of {self._parts.model.name!r}: {self._parts.holdings.contents.num_layers} layers, not begun>"
        role = present[0].role_of(present[1])
        if role is None:
            return f"<Pipe of {self._parts.model.name!r}: nothing to do>"
        return (
            f"<Pipe of {self._parts.model.name!r}: pipeline {role.pipeline} stage {role.stage} of {role.num_stages}, "
            f"layers {role.first} to {role.end - 1}>"
        )

    @property
    def model(self) -> LayeredModel:
        """The whole model in layers; only those of ``layers`` have memory here."""
        return self._parts.model

    @property
    def assignment(self) -> Assignment | None:
        """Who has which layers and micro-batches at present; None before the first step."""
        present = self._present()
        return None if present is None else present[0]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that this process trains at present."""
        present = self._present()
        return () if present is None else present[0].layers_of(present[1])

    def optimizer(
        self, factory: Callable[[list[nn.Parameter]], Optimizer], *, max_grad_norm: float | None = None
    ) -> Optimizer:
        """Return an optimizer of this process's layers; it runs only when a step counts.

        ``factory``: called with parameters, now with all of the model, and again when this process gets other layers:
        ``lambda parameters: torch.optim.AdamW(parameters, lr=3e-4)``. It must make the same groups each time. The
        optimizer that is returned stays the same object, so schedulers may have it. ``max_grad_norm``: scale the
        gradients of all processes together to this norm before it runs, if theirs is larger; a step's
        ``values["grad_norm"]`` has what it was. ``torch.nn.utils.clip_grad_norm_`` would see this process's only.
        """
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={max_grad_norm!r}: expected a number above 0, or None")
        self._parts.holdings.max_grad_norm = max_grad_norm
        optimizer = self._parts.add_optimizer(factory)
        self._add_optimizer(optimizer)
        return optimizer

    def forward_backward(self, step: Step) -> float:
        """Do what this process has to do in this step; return the mean loss over all of its micro-batches.

        Afterwards each ``.grad`` is the mean over the whole step. Where a peer is lost, ``with step`` ends and the same
        step comes again, or this call computes its part anew.
        """
        for _ in step:
            raise AssertionError("a step of pipelines yields no micro-batches")
        return step.values.get("loss", float("nan"))

"""Checks that a model's answer depends on its input alone, by calling it several times and watching it.

A model with state between calls, or with random numbers, cannot be cut. Several copies of a part would not share the
state, an input that is sent again after a loss would change it twice, and a batch would change it once for several
inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..comparing import agree
from .snapshots import Snapshot, difference, snapshot
from .watching import Watch, WriteRefusedError, random_states

KEPT = "it keeps state between calls, which replicas do not share and a request that is sent again changes twice"


class ImpureError(Exception):
    """A model's answer depends on more than its input. The text says on what."""


def check_pure(module: nn.Module, values: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> Any:
    """Return a model's answer to an example. The answer must be the same in each call, also after one with ``others``.

    ``module``: a copy that shares only the parameters with the original; they stay as they are. Raises ImpureError, and
    the error of a model that cannot take its example.
    """
    try:
        return _Trial(module).run(values, others)
    except WriteRefusedError as error:
        raise ImpureError(f"forward {error}: {KEPT}") from None


class _Trial:
    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._watch = Watch(module)
        self._states: list[Snapshot] = [snapshot(module)]
        self._random: list[dict[str, Any]] = [random_states()]

    def run(self, values: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> Any:
        first, second = self._call(values), self._call(values)
        changed = difference(self._states[1], self._states[2])
        if changed:
            raise ImpureError(self._why_changed(changed))
        if self._watch.outliving:
            self._watch.undo()
            raise ImpureError(
                f"forward writes into a tensor that is not its own and outlives the call ({self._watch.outliving}): "
                f"{KEPT}"
            )
        if not agree(first, second):
            raise ImpureError(self._why("it gives another answer when it is called again"))
        if self._drawn and not self._is_the_same_whatever_is_drawn(values, first):
            raise ImpureError(self._why("its answer depends on them"))
        self._try(others)
        if not agree(first, self._call(values)):
            raise ImpureError(self._why("its answer to a request depends on those before it"))
        return first

    def _call(self, values: Mapping[str, torch.Tensor]) -> Any:
        try:
            return self._watch.call(values)
        finally:
            self._states.append(snapshot(self._module))
            self._random.append(random_states())

    def _try(self, values: Mapping[str, torch.Tensor]) -> None:
        """Call the model with values that it may refuse. Only its later answers count."""
        try:
            self._call(values)
        except WriteRefusedError:
            raise
        except Exception:  # the model's own code may raise anything
            return

    def _is_the_same_whatever_is_drawn(self, values: Mapping[str, torch.Tensor], answer: Any) -> bool:
        try:
            return all(agree(answer, found) for found in self._watch.answers_to_extremes(values))
        except WriteRefusedError:
            raise
        except Exception:  # with extreme random numbers, the model's own code may raise anything
            return False

    @property
    def _drawn(self) -> list[str]:
        """The generators that the model drew from, without those that it seeds before each draw."""
        before, between, after = self._random[:3]
        return [name for name in before if before[name] != between[name] and between[name] != after[name]]

    def _why_changed(self, name: str) -> str:
        if self._watch.drawing:
            return self._why(f"changes its {name} with each call")
        return f"forward changes its {name} with each call: {KEPT}"

    def _why(self, what: str) -> str:
        if self._watch.drawing or self._drawn:
            source = self._watch.drawing or f"of {self._drawn[0]}"
            return (
                f"forward draws random numbers ({source}), and {what}; what is sent again or to another replica would "
                "get another answer. In evaluation mode, draw none, as nn.Dropout does"
            )
        changed = difference(self._states[0], self._states[-1])
        if changed:
            return f"forward changes its {changed}, and {what}: {KEPT}"
        return f"{what}: it keeps state outside of the module, or draws random numbers in a way of its own"

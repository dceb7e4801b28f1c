"""Tell a timer when backward begins: at the first gradient of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .timing import BACKWARD, FORWARD, StepTimer


class BackwardStart:
    """In the first backward it learns which parameter gets its gradient first; from then on it has one hook only."""

    def __init__(self, parameters: Sequence[nn.Parameter], timer: StepTimer) -> None:
        self._timer = timer
        self._hooks = [_hook(each, self._first) for each in parameters]
        self._is_learned = False

    def _first(self, parameter: Tensor) -> None:
        if self._timer.part == FORWARD:
            self._timer.enter(BACKWARD)
            if not self._is_learned:
                self._is_learned = True
                self.close()
                self._hooks = [_hook(parameter, self._first)]

    def close(self) -> None:
        """Idempotent."""
        while self._hooks:
            self._hooks.pop().remove()


def _hook(parameter: Any, hook: Any) -> Any:
    return parameter.register_post_accumulate_grad_hook(hook)

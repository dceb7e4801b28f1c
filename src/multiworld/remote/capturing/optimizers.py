"""Optimizers in a captured block: one that makes its state there would make it anew, and forget, in each replay."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..errors import CaptureError
from ..session.origins import here
from ..tensor.remote_tensor import RemoteTensor


class OptimizersOfBlock:
    """A context manager: notes the optimizers that make a step in it, on this thread, with the lines."""

    def __init__(self) -> None:
        self._stepped: dict[Optimizer, str] = {}
        self._thread = threading.get_ident()
        self._hooks = ExitStack()

    def __enter__(self) -> OptimizersOfBlock:
        self._hooks.enter_context(register_optimizer_step_post_hook(self._note))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hooks.close()

    def check(self, first_id: int) -> None:
        """Raises CaptureError for an optimizer with state that was made in the block: its ids are that and higher."""
        for optimizer, line in self._stepped.items():
            for state in optimizer.state.values():
                for name, value in state.items():
                    if isinstance(value, RemoteTensor) and value._id > first_id:
                        _refuse(optimizer, line, f"its state {name!r} was made", "make it anew, and lose what it held")
                    if isinstance(value, Tensor) and not isinstance(value, RemoteTensor):
                        _refuse(optimizer, line, f"its state {name!r} on the master was changed", "leave it as it is")

    def _note(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == self._thread:
            self._stepped.setdefault(optimizer, here())


def _refuse(optimizer: Optimizer, line: str, what: str, outcome: str) -> None:
    raise CaptureError(
        f"{type(optimizer).__name__}.step",
        line,
        f"{what} in the captured block, and each replay would {outcome}",
        "Call step() of the optimizer once before the block: it makes its state then. One that counts its steps here "
        "counts them on the node with fused=True or capturable=True, and with parameters on the device 'remote:N'",
    )

"""What a session asks of the recovery of its node, if it has one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..protocol.specs import Spec


class Recovery(Protocol):
    """Keeps what is needed to make a node anew. Methods are called on any thread, and do not block."""

    @property
    def raises(self) -> bool:
        """Whether a wait that the loss of the node interrupts ends in an error."""

    def may_return(self) -> bool:
        """The node was lost: whether it is made anew, with all its tensors."""

    def keep_large(self, id_: int, elements: Tensor, spec: Spec) -> None:
        """Keep a large tensor, which nobody changes."""

    def is_waiting(self, request: int) -> bool:
        """Whether a node that is made anew answers this request."""

    def answered(self, request: int, answer: bytes) -> None:
        """Note what the node said to a request."""

    def done(self, request: int) -> None:
        """Nobody waits for the answer to this request any more."""

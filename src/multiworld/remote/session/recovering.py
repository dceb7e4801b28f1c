"""What a session asks of the recovery of its node, if it has one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..protocol.specs import Spec


class Recovery(Protocol):
    """Keeps what is needed to make a node anew. Any thread; nothing but ``make_anew`` blocks."""

    @property
    def raises(self) -> bool:
        """Whether a wait that the loss of the node interrupts ends in an error."""

    def refusal(self) -> str:
        """The node was lost: return why it is not made anew; empty if it is."""

    def keep_large(self, id_: int, elements: Tensor, spec: Spec) -> None:
        """Keep a large tensor, which nobody changes."""

    def is_waiting(self, request: int) -> bool:
        """Whether a node that is made anew answers this request."""

    def answered(self, request: int, answer: bytes) -> None:
        """Note what the node said to a request."""

    def done(self, request: int) -> None:
        """Nobody waits for the answer to this request any more."""

    def make_anew(self) -> None:
        """Make what the node had on the one whose worlds stand now. It blocks. Raises MultiworldError if it fails."""

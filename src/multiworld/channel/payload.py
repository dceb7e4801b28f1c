"""What one message may hold."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

__all__ = ["Payload"]

Payload: TypeAlias = Tensor | list[Tensor] | dict[str, Tensor]

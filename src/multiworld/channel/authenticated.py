"""The channel for CPU tensors over networks where others could change what is sent: as the default, authenticated."""

from __future__ import annotations

from typing import ClassVar

from .auto import AutoChannel

__all__ = ["AuthenticatedChannel"]


class AuthenticatedChannel(AutoChannel):
    """Between hosts tensors go in records that verify (``wire.records``); on one host the kernel keeps others out."""

    name: ClassVar[str] = "authenticated"
    authenticates: ClassVar[bool] = True

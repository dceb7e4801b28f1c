"""Check a ``--backend`` before any process is started."""

from __future__ import annotations

__all__ = ["check_backend"]


def check_backend(backend: str) -> None:
    """Raise ``ValueError`` for a channel that is unknown, moves no CPU tensors or does not work on this machine."""
    import torch

    from ..channel.registry import find_channel

    support = find_channel(backend, torch.device("cpu")).support()
    if not support.works:
        raise ValueError(f"backend {backend!r} does not work here: {support.reason}")

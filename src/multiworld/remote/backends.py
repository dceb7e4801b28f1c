"""Whether the channel of large tensors works here: looked at before anything is started."""

from __future__ import annotations

import torch

from ..channel.registry import find_channel
from .errors import ConnectError


def bulk_backend(backend: str) -> str:
    """Return the channel between the master and its nodes: NCCL moves nothing that is in the memory of a CPU."""
    return "auto" if backend == "nccl" else backend


def check_backend(backend: str) -> None:
    """Raises ValueError for a channel that is not there, ConnectError for one that does not work on this host."""
    if backend == "nccl":
        return  # between GPUs of the nodes; the master needs none
    support = find_channel(backend, torch.device("cpu")).support()
    if not support.works:
        raise ConnectError(f"backend={backend!r} does not work on this host: {support.reason}")

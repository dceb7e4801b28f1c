"""Gloo's network devices of this process: one for each local address, shared by all groups, closed with the last."""

from __future__ import annotations

import threading
from typing import Any

import torch.distributed as dist

__all__ = ["acquire_device", "release_device"]

_lock = threading.Lock()
_devices: dict[str, tuple[Any, int]] = {}  # by address: the device, and how many groups are on it


def acquire_device(host: str) -> Any:
    """Return the device of a numeric local address: a thread and four descriptors until all have released it."""
    with _lock:
        device, num_groups = _devices.get(host, (None, 0))
        if device is None:
            device = dist.ProcessGroupGloo.create_device(hostname=host)
        _devices[host] = device, num_groups + 1
    return device


def release_device(host: str) -> None:
    with _lock:
        device, num_groups = _devices.pop(host)
        if num_groups > 1:
            _devices[host] = device, num_groups - 1

"""How PyTorch names the place of a remote tensor: ``remote:N``, once the program has asked for the device name."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch

from ..errors import DeviceNameError

NAME: Final = "remote"


class DeviceName:
    """``in_use``: from the call of ``remote.use_device_name`` until the process ends."""

    in_use = False


@cache
def named(number: int) -> torch.device:
    """Return the device of a node. The name must be in use: PyTorch knows it only then."""
    return torch.device(NAME, number)


def node_of(device: Any) -> int | None:
    """Return which node a device means; None: it is of another type. PyTorch takes one without a number for 0."""
    if not DeviceName.in_use or device is None:
        return None
    told = torch.device(device)
    if told.type != NAME:
        return None
    return told.index or 0


def check_in_use(device: Any) -> None:
    """Raises DeviceNameError for ``"remote:N"`` before the name is in use: PyTorch's error does not say what to do."""
    if isinstance(device, str) and device.partition(":")[0] == NAME and not DeviceName.in_use:
        raise DeviceNameError("remote.use_device_name() was not called. Call it first")

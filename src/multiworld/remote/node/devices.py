"""Which devices this process has, as its master names them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...errors import MultiworldError
from ..protocol.template import Template


class NoSuchDeviceError(MultiworldError):
    """An operation is to run on a device that the node does not have. ``devices``: those that it has."""

    def __init__(self, device: str, devices: tuple[str, ...]) -> None:
        super().__init__(device, devices)
        self.device, self.devices = device, devices

    def __str__(self) -> str:
        return f"the node has no device {self.device}; its devices: {', '.join(self.devices)}"


def devices() -> tuple[str, ...]:
    """Return ``cpu`` and the accelerators of this process, as ``cuda:0``."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ("cpu", *(f"cuda:{index}" for index in range(num_gpus)))


def check_devices(template: Template) -> None:
    """Raises NoSuchDeviceError for a call on a device, or with results on one, that is not there."""
    for device in _named_in(template):
        if device.type != "cuda":
            continue
        there = devices()
        if str(device) not in there and not (device.index is None and "cuda:0" in there):
            raise NoSuchDeviceError(str(device), there)


def _named_in(template: Template) -> Iterable[torch.device]:
    yield from (value for value in template.kwargs.values() if isinstance(value, torch.device))
    yield from (torch.device(spec.device) for spec in template.outputs if spec is not None)

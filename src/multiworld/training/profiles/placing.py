"""Have a layer on a device for a while, so that a model can be measured that is larger than the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def placed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Copy parameters and buffers there. At the end the module has those that it had, with the same values."""
    tensors = dict.fromkeys((*module.parameters(), *module.buffers()))
    at_home = [(each, each.data) for each in tensors if each.device != device]
    for tensor, data in at_home:
        tensor.data = data.to(device)
    try:
        yield
    finally:
        for tensor, data in at_home:
            tensor.data = data

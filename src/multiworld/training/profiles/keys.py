"""Says what a measurement holds for, so that one is never taken for another's."""

from __future__ import annotations

import hashlib

import torch

from ...model.layers import LayeredModel
from ...process.facts import cpu_model
from ..planning.profile_file import ProfileKey

MEASUREMENT = 4
"""Raised when other things are measured, or in another way."""


def key_of(
    layered: LayeredModel, inputs: tuple[torch.Tensor, ...], *, optimizer_states: int, loss: str = ""
) -> ProfileKey:
    """Return the key of a measurement with these inputs of layer 0. ``loss``: its name, empty without one."""
    what = repr((layered.digest, optimizer_states, loss, MEASUREMENT))
    return ProfileKey(
        model_digest=hashlib.sha256(what.encode()).hexdigest(),
        shapes="; ".join(f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" for value in inputs),
        device=device_name(inputs[0].device),
        torch_version=torch.__version__,
    )


def device_name(device: torch.device) -> str:
    """Return the kind and the model of a device; of a CPU also the threads that PyTorch computes with."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        return f"cpu: {cpu_model() or 'unknown'}, {torch.get_num_threads()} threads"
    return device.type

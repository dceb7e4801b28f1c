"""Decide whether an error leaves a device unusable for the whole process: then the node has to end. Pure."""

from __future__ import annotations

from typing import Final

import torch

from ...errors import MultiworldError

STICKY_CODES: Final = frozenset(
    {
        214,  # uncorrectable memory error
        220,  # uncorrectable NVLink error
        226,  # contained error
        700,  # illegal address
        702,  # launch timeout
        710,  # device-side assert
        714,  # hardware stack error
        715,  # illegal instruction
        716,  # misaligned address
        717,  # invalid address space
        718,  # invalid program counter
        719,  # launch failure
        721,  # tensor memory leak
        810,  # the MPS server ended this client
        911,  # error of an external device
    }
)
"""Of ``cudaError_t``: after these CUDA wants the process to be started again. HIP has the same numbers."""


class DeviceUnusableError(MultiworldError):
    """No operation on a device can run in this process any more (``reason``): the node ends, and can be replaced."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"a GPU can't be used by this process any more: {self.reason}. "
            "The node ends. A new process can use the GPU: start the node again"
        )


def leaves_unusable(error: BaseException) -> bool:
    """Whether all later operations on the device fail, too."""
    return isinstance(error, torch.AcceleratorError) and getattr(error, "error_code", None) in STICKY_CODES

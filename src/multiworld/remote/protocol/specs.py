"""What the master knows of a remote tensor: shape, strides, dtype, device. Each is kept once. Pure."""

from __future__ import annotations

import math
import threading
from typing import Any, Final, NamedTuple

import torch

from ...errors import ProtocolError
from . import values


class Spec(NamedTuple):
    """``stride`` and ``offset`` in elements. ``device``: on the node, as ``cpu`` or ``cuda:0``."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: str = "cpu"
    conj: bool = False
    neg: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.size)


_numbers: dict[Spec, int] = {}
_specs: list[Spec] = []
_lock: Final = threading.Lock()


def number_of(spec: Spec) -> int:
    """Return a small number that stands for this spec in this process."""
    number = _numbers.get(spec)
    if number is None:
        with _lock:
            number = _numbers.get(spec)
            if number is None:
                _specs.append(spec)
                number = _numbers[spec] = len(_specs) - 1
    return number


def spec_of(number: int) -> Spec:
    return _specs[number]


def describe(tensor: torch.Tensor, device: str = "cpu") -> Spec:
    """Return the spec of a local or meta tensor, as if it lived on ``device`` of a node."""
    return Spec(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.dtype,
        device,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def to_json(spec: Spec) -> list[Any]:
    dtype = values.to_json(spec.dtype)
    return [list(spec.size), list(spec.stride), spec.offset, dtype, spec.device, spec.conj, spec.neg]


def from_json(shown: Any) -> Spec:
    """Raises ProtocolError."""
    try:
        size, stride, offset, dtype, device, conj, neg = shown
        spec = Spec(tuple(size), tuple(stride), offset, values.from_json(dtype), str(device), bool(conj), bool(neg))
        lengths = (*spec.size, *spec.stride, spec.offset)
        if not isinstance(spec.dtype, torch.dtype) or any(type(each) is not int or each < 0 for each in lengths):
            raise ValueError("an impossible shape")
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"a bad description of a tensor: {error}") from None
    return spec

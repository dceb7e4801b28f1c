"""Constants of a call as JSON, each with its type: what a node builds from it is equal, and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ...errors import ProtocolError

MAX_DEPTH: Final = 8
_NAMED: Final[dict[str, type]] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_KIND_OF: Final = {cls: kind for kind, cls in _NAMED.items()}


def to_json(value: object, depth: int = 0) -> Any:
    """Return ``value`` as JSON. Raises TypeError for a type that does not travel."""
    if value is None or type(value) is bool or type(value) is int or type(value) is str:
        return value
    if type(value) is float:
        return ["float", value.hex()]
    if type(value) is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    kind = _KIND_OF.get(type(value))
    if kind is not None:
        return [kind, str(value).removeprefix("torch.")]
    if type(value) is torch.device:
        return ["device", str(value)]
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        return ["list", [to_json(item, depth + 1) for item in value]]
    if isinstance(value, (int, float)):  # a subclass, as an IntEnum
        return to_json(int(value) if isinstance(value, int) else float(value))
    raise TypeError(f"a {type(value).__name__} can't be sent to a node")


def from_json(shown: Any, depth: int = 0) -> Any:
    """Return the constant. Raises ProtocolError for what ``to_json`` does not return."""
    if shown is None or type(shown) in (bool, int, str):
        return shown
    if type(shown) is list and len(shown) >= 2 and depth <= MAX_DEPTH:
        if shown[0] == "list" and type(shown[1]) is list:
            return [from_json(item, depth + 1) for item in shown[1]]
        read = _READERS.get(shown[0]) if type(shown[0]) is str else None
        if read is not None and all(type(text) is str for text in shown[1:]):
            try:
                return read(*shown[1:])
            except (TypeError, ValueError, OverflowError, RuntimeError) as error:
                raise ProtocolError(f"a bad constant {shown!r}: {error}") from None
    raise ProtocolError(f"a bad constant {str(shown)[:80]!r}")


def _named(kind: str) -> Callable[[str], object]:
    def read(name: str) -> object:
        value = getattr(torch, name, None)
        if type(value) is not _NAMED[kind]:
            raise ValueError(f"torch has no {kind} {name!r}")
        return value

    return read


_READERS: Final[dict[str, Callable[..., object]]] = {
    "float": float.fromhex,
    "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "device": torch.device,
    **{kind: _named(kind) for kind in _NAMED},
}

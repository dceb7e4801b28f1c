"""Names what was cut: two processes with the same digest have the same layers."""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from torch import fx, nn

from .layer import Crossing, ModelLayer

_parsing: Final = threading.Lock()  # CPython 3.11 parses in one thread at a time: in several it may raise SystemError


def digest_of(inputs: Sequence[Crossing], layers: Iterable[ModelLayer]) -> str:
    """Return a SHA-256 of the names, shapes, types and code of layers, as far as the code is known."""
    found = hashlib.sha256(repr(inputs).encode())
    for layer in layers:
        tensors = (*layer.parameters.items(), *layer.buffers.items())
        shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in tensors]
        needed = [name for name, value in layer.parameters.items() if value.requires_grad]
        found.update(repr((layer.name, shapes, needed, layer.outputs)).encode())
        for code in _codes(layer.module):
            found.update(code.encode())
    return found.hexdigest()


def _codes(module: nn.Module) -> Iterable[str]:
    yield repr(module)  # with sizes, probabilities and the like, as the parts' extra_repr gives them
    seen: set[type] = set()
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield part.code
        elif type(part) not in seen and not type(part).__module__.startswith("torch."):
            seen.add(type(part))
            try:
                with _parsing:
                    code = inspect.getsource(type(part))
            except (OSError, TypeError):  # typed in, or made by a program
                code = type(part).__qualname__
            yield code

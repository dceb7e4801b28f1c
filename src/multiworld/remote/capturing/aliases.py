"""Which recorded tensors share memory: a view has that of the tensor that it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import torch

from ..protocol.records import Kind
from .recording import Recorded

_UNNOTED: Final = frozenset({"aten._unsafe_view.default"})
"""Views that do not say so."""


def roots_of(recorded: Iterable[Recorded], known: Mapping[int, int] | None = None) -> dict[int, int]:
    """Return for each view the id of the tensor whose memory it has. ``known``: those from before."""
    roots = dict(known or {})
    for each in recorded:
        if not isinstance(each.calls, Kind) and each.inputs and _makes_views(each.name):
            root = roots.get(each.inputs[0], each.inputs[0])
            roots.update(dict.fromkeys(each.outputs, root))
    return roots


@cache
def _makes_views(operator: str) -> bool:
    namespace, name, overload = operator.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    return operator in _UNNOTED or any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    )

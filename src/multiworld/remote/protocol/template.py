"""One call of an operator without its tensors and floats: what a plan says once, so that each call is numbers. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

from ...errors import ProtocolError
from . import specs, values
from .checks import list_of, text
from .specs import Spec

MAX_SLOTS: Final = 100_000

Keywords: TypeAlias = Mapping[str, Any]
"""Keyword arguments of an operator."""


class Slot:
    """Where a tensor or a float of a call stands in its arguments."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"


TENSOR: Final = Slot("tensor")
FLOAT: Final = Slot("float")
GENERATOR: Final = Slot("generator")
"""The default generator of the node, on the device of the call."""
_SLOTS: Final = {slot.kind: slot for slot in (TENSOR, FLOAT, GENERATOR)}


@dataclass(frozen=True, kw_only=True)
class Template:
    """``operator``: ``namespace.name.overload``. In ``args`` and ``kwargs`` slots stand for tensors and floats.

    ``outputs``: one for each tensor that the operator returns, with lists flattened; None for one that has no id of its
    own, because it is an argument that was written, or undefined. ``writes``: which tensors are written, by their
    place among the tensors of the call. ``reshapes``: those which get another shape or other strides, with these.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: Keywords
    outputs: tuple[Spec | None, ...]
    writes: tuple[int, ...] = ()
    reshapes: tuple[tuple[int, Spec], ...] = ()

    @cached_property
    def num_tensors(self) -> int:
        return sum(slot is TENSOR for slot in self.slots())

    @cached_property
    def num_floats(self) -> int:
        return sum(slot is FLOAT for slot in self.slots())

    @cached_property
    def num_outputs(self) -> int:
        return sum(spec is not None for spec in self.outputs)

    @cached_property
    def numbers(self) -> struct.Struct:
        """One call: the plan's number, the ids of outputs and of tensors, the floats."""
        return struct.Struct(f"<I{self.num_outputs + self.num_tensors}Q{self.num_floats}d")

    def slots(self) -> Iterator[Slot]:
        """Yield the slots in the order of their numbers."""
        yield from _slots_in(self.args)
        yield from _slots_in(tuple(self.kwargs.values()))

    def encode(self) -> bytes:
        shown = {
            "operator": self.operator,
            "args": [_to_json(item) for item in self.args],
            "kwargs": {name: _to_json(item) for name, item in self.kwargs.items()},
            "outputs": [None if spec is None else specs.to_json(spec) for spec in self.outputs],
            "writes": list(self.writes),
            "reshapes": [[place, specs.to_json(spec)] for place, spec in self.reshapes],
        }
        return json.dumps(shown, separators=(",", ":")).encode()


def decode(encoded: bytes) -> Template:
    """Raises ProtocolError for what ``encode`` does not return."""
    try:
        shown = json.loads(encoded)
        template = Template(
            operator=text(shown["operator"]),
            args=tuple(_from_json(item) for item in list_of(shown["args"])),
            kwargs={text(name): _from_json(item) for name, item in shown["kwargs"].items()},
            outputs=tuple(None if spec is None else specs.from_json(spec) for spec in list_of(shown["outputs"])),
            writes=tuple(list_of(shown["writes"])),
            reshapes=tuple((place, specs.from_json(spec)) for place, spec in list_of(shown["reshapes"])),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a bad template of a call: {type(error).__name__}: {error}") from None
    num_slots = template.num_tensors + template.num_floats + template.num_outputs
    if num_slots > MAX_SLOTS or any(
        type(each) is not int or not 0 <= each < template.num_tensors
        for each in (*template.writes, *(place for place, _ in template.reshapes))
    ):
        raise ProtocolError(f"a bad template of {template.operator}: {num_slots} slots, writes {template.writes}")
    return template


def _slots_in(items: Sequence[Any]) -> Iterator[Slot]:
    for item in items:
        if type(item) is Slot:
            yield item
        elif type(item) is list:
            yield from _slots_in(item)


def _to_json(item: object) -> Any:
    if type(item) is Slot:
        return ["slot", item.kind]
    if type(item) is list:
        return ["list", [_to_json(each) for each in item]]
    return values.to_json(item)


def _from_json(shown: Any, depth: int = 0) -> Any:
    if type(shown) is list and len(shown) == 2:
        if shown[0] == "slot":
            slot = _SLOTS.get(shown[1]) if type(shown[1]) is str else None
            if slot is None:
                raise ProtocolError(f"a bad slot {shown[1]!r}")
            return slot
        if shown[0] == "list" and type(shown[1]) is list and depth < values.MAX_DEPTH:
            return [_from_json(each, depth + 1) for each in shown[1]]
    return values.from_json(shown)

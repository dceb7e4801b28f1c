"""Build the graph of a step from what was recorded: ids become slots, dropped after their last use. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..protocol.graphs import Constant, Graph, GraphCall
from .recording import Recorded
from .scalars import Place


class Built(NamedTuple):
    """``floats``: the expressions whose values a replay sends, in that order."""

    graph: Graph
    floats: tuple[Place, ...]


def externals_of(recorded: Iterable[Recorded], given: Collection[int]) -> dict[int, Recorded]:
    """Return the ids that are used and that nothing made, each with the first operation that uses it.

    ``given``: ids that are no externals, as those of inputs.
    """
    made = set(given)
    found: dict[int, Recorded] = {}
    for each in recorded:
        for id_ in each.inputs:
            if id_ not in made and id_ not in found:
                found[id_] = each
        made.update(each.outputs)
    return found


def build(
    number: int,
    recorded: Sequence[Recorded],
    *,
    inputs: Sequence[int],
    externals: Sequence[int],
    constants: Mapping[int, Constant],
    statics: Collection[int],
    outputs: Sequence[int],
    is_compiled: bool = False,
) -> Built:
    """Return the graph. ``statics``: ids that are made and stay alive. ``outputs``: ids that each replay returns.

    ``is_compiled``: whether the node is to compile it.
    """
    slots: dict[int, int] = {}
    for id_ in (*inputs, *externals, *constants):
        slots[id_] = len(slots)
    for each in recorded:
        for id_ in each.outputs:
            slots[id_] = len(slots)
    last_uses = _last_uses(recorded, {*statics, *outputs})
    fixed: dict[str, int] = {}  # by their exact bits
    varying: dict[Place, int] = {}
    for each in recorded:
        for value in each.floats:
            if isinstance(value, Place):
                varying.setdefault(value, len(varying))
            else:
                fixed.setdefault(value.hex(), len(fixed))
    calls = tuple(
        GraphCall(
            plan=each.calls if isinstance(each.calls, int) else each.calls.number,
            outputs=tuple(slots[id_] for id_ in each.outputs),
            inputs=tuple(slots[id_] for id_ in each.inputs),
            floats=tuple(
                len(fixed) + varying[value] if isinstance(value, Place) else fixed[value.hex()] for value in each.floats
            ),
            drops=tuple(slots[id_] for id_ in last_uses[place]),
        )
        for place, each in enumerate(recorded)
    )
    graph = Graph(
        number,
        len(inputs),
        tuple(externals),
        tuple(constants.values()),
        calls,
        tuple((id_, slots[id_]) for id_ in statics),
        tuple(slots[id_] for id_ in outputs),
        tuple(float.fromhex(value) for value in fixed),
        len(varying),
        is_compiled,
    )
    return Built(graph, tuple(varying))


def _last_uses(recorded: Sequence[Recorded], kept: Collection[int]) -> list[list[int]]:
    """Return for each operation what was made before, or by it, and is needed by none behind it."""
    made: set[int] = set()
    last: dict[int, int] = {}
    for place, each in enumerate(recorded):
        made.update(each.outputs)
        for id_ in (*each.outputs, *each.inputs):
            last[id_] = place
    uses: list[list[int]] = [[] for _ in recorded]
    for id_, place in last.items():
        if id_ in made and id_ not in kept:
            uses[place].append(id_)
    return uses

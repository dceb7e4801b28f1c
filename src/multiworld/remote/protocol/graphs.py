"""A graph: many calls that a node keeps and runs again as one record. Its records, and their bytes. Pure.

The tensors of a run have slots. The first slots are the inputs, then come ``externals``, which are tensors of the node
by id, then ``constants``, then what the calls make. ``floats`` are those that are the same in each run; a run brings
``num_floats`` more, which are counted behind them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ...errors import ProtocolError
from . import specs
from .checks import count
from .records import HEAD, MAX_ID, Kind, record
from .specs import Spec

MAX_GRAPH_SLOTS: Final = 4_000_000
_GRAPH: Final = struct.Struct("<QI")
_NUMBER: Final = struct.Struct("<Q")


class GraphCall(NamedTuple):
    """One call. ``plan``: the number of its plan, or the kind of a record of generators.

    ``outputs``, ``inputs``: slots. ``floats``: places among the floats. ``drops``: slots that no later call needs.
    """

    plan: int
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    floats: tuple[int, ...] = ()
    drops: tuple[int, ...] = ()


class Constant(NamedTuple):
    """A tensor that is the same in each run, with its elements in the order of its memory."""

    spec: Spec
    memory: bytes


class Graph(NamedTuple):
    """``statics``: ids that get a new tensor in each run, with its slot, unless they were freed. ``outputs``: slots.

    ``is_compiled``: whether the node is to compile it by inductor, whose results may differ in the last bits.
    """

    number: int
    num_inputs: int
    externals: tuple[int, ...]
    constants: tuple[Constant, ...]
    calls: tuple[GraphCall, ...]
    statics: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]
    floats: tuple[float, ...] = ()
    num_floats: int = 0
    is_compiled: bool = False

    @property
    def num_given(self) -> int:
        """How many slots are filled before the first call."""
        return self.num_inputs + len(self.externals) + len(self.constants)

    @property
    def num_slots(self) -> int:
        return max(self.num_given, *(1 + slot for call in self.calls for slot in call.outputs), 0)

    @property
    def run_layout(self) -> struct.Struct:
        """One run: the graph's number, the ids of inputs and outputs, the floats."""
        return struct.Struct(f"<Q{self.num_inputs + len(self.outputs)}Q{self.num_floats}d")


def define_graph(graph: Graph) -> bytes:
    shown = [
        graph.num_inputs,
        graph.externals,
        [[specs.to_json(each.spec), len(each.memory)] for each in graph.constants],
        graph.calls,
        graph.statics,
        graph.outputs,
        [each.hex() for each in graph.floats],
        graph.num_floats,
        graph.is_compiled,
    ]
    head = json.dumps(shown, separators=(",", ":")).encode()
    memory = b"".join(each.memory for each in graph.constants)
    return record(Kind.GRAPH, _GRAPH.pack(graph.number, len(head)) + head + memory)


def read_graph(body: bytes) -> Graph:
    """Raises ProtocolError for what ``define_graph`` does not return."""
    try:
        number, size = _GRAPH.unpack_from(body)
        at = _GRAPH.size + size
        num_inputs, externals, constants, calls, statics, outputs, floats, num_floats, is_compiled = json.loads(
            body[_GRAPH.size : at]
        )
        read_constants = []
        for spec, num_bytes in constants:
            read_constants.append(Constant(specs.from_json(spec), body[at : at + _count(num_bytes)]))
            at += num_bytes
        graph = Graph(
            number,
            _count(num_inputs),
            _counts(externals),
            tuple(read_constants),
            tuple(_call(each) for each in calls),
            tuple((_count(id_), _count(slot)) for id_, slot in statics),
            _counts(outputs),
            tuple(float.fromhex(each) for each in floats),
            _count(num_floats),
            _flag(is_compiled),
        )
    except (struct.error, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a bad graph: {type(error).__name__}: {error}") from None
    if at != len(body):
        raise ProtocolError(f"a graph of {at} bytes in a record of {len(body)}")
    _check(graph)
    return graph


def run_graph(layout: struct.Struct, number: int, ids: Iterable[int], floats: Iterable[float]) -> bytes:
    """Return the record of one run. ``ids``: of inputs, then of outputs."""
    return HEAD.pack(Kind.REPLAY, layout.size) + layout.pack(number, *ids, *floats)


def read_number(body: bytes) -> int:
    """Return the number of the graph that a record is about. Raises ProtocolError."""
    if len(body) < _NUMBER.size:
        raise ProtocolError(f"a record of {len(body)} bytes that should name a graph")
    return int(_NUMBER.unpack_from(body)[0])


def key_of(number: int) -> tuple[str, int]:
    """Return the key of a graph among all that is defined on a stream: plans are numbered, too."""
    return "graph", number


def forget_graph(number: int) -> bytes:
    return record(Kind.FORGET_GRAPH, _NUMBER.pack(number))


def _check(graph: Graph) -> None:
    """Each slot is filled before it is read. Raises ProtocolError."""
    num_floats = len(graph.floats) + graph.num_floats
    if graph.num_slots + num_floats > MAX_GRAPH_SLOTS:
        raise ProtocolError(f"a graph with {graph.num_slots} slots and {num_floats} floats: at most {MAX_GRAPH_SLOTS}")
    filled = set(range(graph.num_given))
    for place, call in enumerate(graph.calls):
        if not filled.issuperset(call.inputs) or not all(each < num_floats for each in call.floats):
            raise ProtocolError(f"call {place} of a graph reads what nothing made before: {call}")
        filled.update(call.outputs)
        if not filled.issuperset(call.drops):
            raise ProtocolError(f"call {place} of a graph drops what nothing made before: {call}")
        filled.difference_update(call.drops)
    if not filled.issuperset((*graph.outputs, *(slot for _, slot in graph.statics))):
        raise ProtocolError("a graph returns what nothing made")


def _call(shown: Any) -> GraphCall:
    plan, outputs, inputs, floats, drops = shown
    return GraphCall(_count(plan), _counts(outputs), _counts(inputs), _counts(floats), _counts(drops))


def _counts(shown: Any) -> tuple[int, ...]:
    return tuple(_count(each) for each in shown)


def _count(shown: Any) -> int:
    return count(shown, MAX_ID)


def _flag(shown: Any) -> bool:
    if type(shown) is not bool:
        raise TypeError(f"true or false is needed, not {str(shown)[:80]!r}")
    return shown

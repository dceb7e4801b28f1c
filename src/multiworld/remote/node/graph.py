"""Graphs on a node: calls that were recorded once, compiled to a list, and run as one record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from ...errors import MultiworldError, ProtocolError
from ..protocol.elements import tensor_of
from ..protocol.graphs import Constant, Graph, GraphCall, read_graph, read_number
from ..protocol.messages import Failed, NotCompiled
from ..protocol.records import Kind
from .graph_call import CompiledCall, KeepGenerator, PlannedCall, RestoreGenerator, Values
from .inductor import InductorGraph
from .plan import Plan
from .shared import Shared
from .table import Arriving, Lost, Table, first_lost, lose_written, memory_id


class Failure(Protocol):
    """Note that something failed in the record that is executed; ``call``: in which call of a graph."""

    def __call__(self, error: BaseException, *, call: int | None = None) -> Failed: ...


class FreedTensorError(MultiworldError):
    """A graph needs a tensor that its node does not have any more (``id_``)."""

    def __init__(self, id_: int) -> None:
        super().__init__(id_)
        self.id_ = id_

    def __str__(self) -> str:
        return f"a tensor that the captured step uses was freed (id {self.id_})"


class Graphs:
    """The graphs of one stream of commands. ``handlers``: of the records about them."""

    def __init__(
        self,
        shared: Shared,
        plans: Mapping[int, Plan],
        arrive: Callable[[Iterable[int]], bool],
        failure: Failure,
        tell: Callable[[NotCompiled], object],
    ) -> None:
        """``plans``: of the stream. ``arrive`` waits for tensors that are still to arrive. ``tell``: the master."""
        self._shared, self._plans, self._arrive, self._failure = shared, plans, arrive, failure
        self._tell = tell
        self._graphs: dict[int, CompiledGraph] = {}
        self.handlers: Final[dict[int, Callable[[bytes], object]]] = {
            Kind.GRAPH: self._define,
            Kind.REPLAY: self._replay,
            Kind.FORGET_GRAPH: lambda body: self._graphs.pop(read_number(body), None),
        }

    def _define(self, body: bytes) -> None:
        graph = read_graph(body)
        self._arrive(graph.externals)  # another stream may make them: later, one that is missing was freed
        compiled = self._graphs[graph.number] = CompiledGraph(graph, self._plans)
        if graph.is_compiled:
            compiled.inductor = InductorGraph(
                graph,
                self._plans,
                compiled.constants,
                self._shared.streams,
                lambda problem: self._tell(NotCompiled(problem=problem)),
            )

    def _replay(self, body: bytes) -> None:
        compiled = self._graphs[read_number(body)]
        graph, table = compiled.graph, self._shared.table
        numbers = compiled.layout.unpack(body)
        num_ids = 1 + graph.num_inputs
        first_float = num_ids + len(graph.outputs)
        given = (*numbers[1:num_ids], *graph.externals)
        entries: list[Any] = [table.get(id_) for id_ in given]
        if any(entry is None for entry in entries[: graph.num_inputs]):  # another stream is to make them
            self._arrive(given[: graph.num_inputs])
        for place, entry in enumerate(entries):
            if type(entry) is not Tensor:
                entries[place] = self._tensor_or_lost(given[place])
        if self._shared.sending:
            self._shared.wait_sends(entries)
        if compiled.inductor is not None:
            outputs = self._run_by(compiled.inductor, graph, given, entries)
            if outputs is not None:
                table.update(zip(numbers[num_ids:first_float], outputs, strict=True))
                return
        values = compiled.run(entries, numbers[first_float:], table, self._failure)
        for id_, slot in zip(numbers[num_ids:first_float], graph.outputs, strict=True):
            table[id_] = values[slot]
        for id_, slot in graph.statics:
            if id_ in table:  # else the master gave it up
                table[id_] = values[slot]

    def _run_by(
        self, inductor: InductorGraph, graph: Graph, given: Sequence[int], entries: Sequence[Any]
    ) -> Sequence[Tensor | Lost] | None:
        """Return the outputs; None: inductor does not run it."""
        try:
            return inductor.run(entries)
        except Exception as error:
            lost = Lost(self._failure(error))
            lose_written(self._shared.table, [given[place] for place in inductor.written], lost)
            return [lost] * len(graph.outputs)

    def _tensor_or_lost(self, id_: int) -> Tensor | Lost:
        table = self._shared.table
        if type(table.get(id_)) is Arriving:
            self._arrive((id_,))
        entry = table.get(id_)
        if isinstance(entry, (Tensor, Lost)):
            return entry
        return Lost(self._failure(FreedTensorError(id_)))


class CompiledGraph:
    """``layout``: of the body of a record that runs it. ``inductor``: if the master wants it to be compiled by that."""

    def __init__(self, graph: Graph, plans: Mapping[int, Plan]) -> None:
        """Raises ProtocolError for calls that do not fit to their plans."""
        self.graph, self.layout = graph, graph.run_layout
        num_given = graph.num_inputs + len(graph.externals)
        self.constants = [_constant(each) for each in graph.constants]
        self.inductor: InductorGraph | None = None
        self._initial: Values = [None] * num_given + self.constants
        self._initial += [None] * (graph.num_slots - len(self._initial))
        self._first_float = len(self._initial) + len(graph.floats)
        first = len(self._initial)
        self._initial += [*graph.floats, *(0.0 for _ in range(graph.num_floats))]
        self._calls = [_compiled(call, plans, self._initial, first) for call in graph.calls]
        self._is_settled = False

    def run(self, given: Sequence[Tensor | Lost], floats: Sequence[float], table: Table, failure: Failure) -> Values:
        """Return the values of all slots: a tensor, or why there is none."""
        values = self._initial.copy()
        values[: len(given)] = given
        if floats:
            values[self._first_float : self._first_float + len(floats)] = floats
        calls = iter(self._calls)
        place = 0
        while True:
            try:
                for call in calls:
                    call.run(values)
                    for slot in call.drops:
                        values[slot] = None
                break
            except Exception as error:
                place = self._calls.index(call, place)
                self._lose(call, place, values, table, error, failure)
                for slot in call.drops:
                    values[slot] = None
        if not self._is_settled:
            self._calls = [call.settled() for call in self._calls]
            self._is_settled = all(call.is_settled for call in self._calls)
        return values

    def _lose(
        self, call: CompiledCall, place: int, values: Values, table: Table, error: Exception, failure: Failure
    ) -> None:
        """A call failed, or got what was lost before: so its results are lost, and what it writes."""
        lost = first_lost(values[slot] for slot in call.inputs) or Lost(failure(error, call=place))
        written = [slot for slot in call.written if isinstance(values[slot], Tensor)]
        memories = {memory_id(values[slot]) for slot in written}
        if memories:
            for id_, entry in table.copy().items():  # other streams go on
                if isinstance(entry, Tensor) and memory_id(entry) in memories:
                    table[id_] = lost
            for slot in range(self.graph.num_slots):
                if isinstance(values[slot], Tensor) and memory_id(values[slot]) in memories:
                    values[slot] = lost
        for slot in call.outputs:
            values[slot] = lost


def _constant(constant: Constant) -> Tensor:
    spec, memory = constant
    elements = torch.frombuffer(bytearray(memory), dtype=spec.dtype) if memory else torch.empty(0, dtype=spec.dtype)
    if elements.numel() < spec.num_elements:
        raise ProtocolError(f"a constant of {elements.numel()} elements: {spec} has {spec.num_elements}")
    try:
        return tensor_of(elements, spec).to(spec.device)
    except RuntimeError as error:  # strides that reach past its memory, or a device that is not there
        raise ProtocolError(f"a constant that can't be made: {error}") from error


def _compiled(call: GraphCall, plans: Mapping[int, Plan], values: Values, first_float: int) -> CompiledCall:
    if call.plan == Kind.KEEP_GENERATOR:
        return KeepGenerator(call)
    if call.plan == Kind.RESTORE_GENERATOR:
        return RestoreGenerator(call)
    plan = plans.get(call.plan)
    if plan is None:
        raise ProtocolError(f"a graph calls the plan {call.plan}, which is not there")
    template = plan.template
    for what, have, need in (
        ("outputs", len(call.outputs), template.num_outputs),
        ("tensors", len(call.inputs), template.num_tensors),
        ("floats", len(call.floats), template.num_floats),
    ):
        if have != need:
            raise ProtocolError(f"a graph calls {plan.operator} with {have} {what}, not {need}")
    return PlannedCall(call, plan, values, first_float)

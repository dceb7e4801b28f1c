"""Compile a graph by PyTorch's inductor, from the operators that the master named: no code travels.

The first run compiles it, on the thread of its stream, which takes seconds. No other thread may do that: inductor gives
the default generator back the state that it had when it began, and what was drawn meanwhile would be drawn again.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ...errors import MultiworldError
from ..protocol import specs
from ..protocol.graphs import Graph, GraphCall
from ..protocol.records import Kind
from ..protocol.specs import Spec
from ..protocol.template import FLOAT, GENERATOR, TENSOR, Keywords
from .plan import Plan, UnforeseenOutputError, conformed
from .streams import Streams
from .table import memory_id

Function: TypeAlias = Callable[..., Sequence[Tensor]]

MAX_CALLS: Final = 10_000
_one_at_a_time: Final = threading.Lock()


class NotCompilableError(MultiworldError):
    """A graph has something that inductor is not given (``reason``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def by_inductor(module: fx.GraphModule, given: Sequence[Spec], num_threads: int) -> Function:
    """Return what does the same as a graph with tensors that look like this.

    Raises what inductor raises, as for a C++ compiler that is not there.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    with FakeTensorMode():
        examples = [torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype) for spec in given]
    options = {"fallback_random": True, "compile_threads": 1, "cpp.threads": num_threads}
    with torch.no_grad(), config.patch(options):
        return compile_fx(module, examples)  # type: ignore[return-value]


class InductorGraph:
    """A graph of a node as inductor runs it: the first run compiles it."""

    def __init__(
        self,
        graph: Graph,
        plans: Mapping[int, Plan],
        constants: Sequence[Tensor],
        streams: Streams,
        tell: Callable[[str], object],
    ) -> None:
        """``streams``: of the node. ``tell`` is called with why it is not compiled, once with each reason."""
        self._constants, self._streams, self._tell = list(constants), streams, tell
        self._function: Function | None = None
        self._problem = ""
        self._has_told_of_streams = False
        self.written: tuple[int, ...] = ()
        """Places, among the inputs and externals, of what it may write."""
        try:
            self._module = built(graph, plans)
            self._outputs = _specs_of_outputs(graph, plans)
            self._has_indices = any(_is_of_indices(spec) for call in graph.calls for spec in plans[call.plan].outputs)
            self.written = _written(graph, plans)
        except NotCompilableError as error:
            self._give_up(error.reason)

    def run(self, given: Sequence[object]) -> Sequence[Tensor] | None:
        """Return the outputs. None: run it operator by operator. Raises what an operator raises."""
        if self._problem or not all(isinstance(each, Tensor) for each in given):
            return None
        tensors: list[Any] = [*given, *self._constants]
        if self.written and len({memory_id(each) for each in tensors}) < len(tensors):
            return None  # it is compiled for tensors that share no memory
        if self._function is None:
            self._function = self._compiled(tensors)
            if self._function is None:
                return None
        found = self._function(*tensors)
        return [_as_foreseen(each, spec) for each, spec in zip(found, self._outputs, strict=True)]

    def _compiled(self, tensors: Sequence[Tensor]) -> Function | None:
        given = [specs.describe(each, str(each.device)) for each in tensors]
        odd = next((spec for spec in given if spec.device != "cpu" or spec.conj or spec.neg), None)
        if odd is not None:
            self._give_up(f"it is compiled for CPUs only, and for no conjugate views: {odd}")
            return None
        # A bad index is an error that code of several threads can't throw: it would end the process.
        has_indices = self._has_indices or any(_is_of_indices(spec) for spec in given)
        num_threads = 1 if has_indices else torch.get_num_threads()
        with self._streams.beginning, _one_at_a_time:
            if not self._streams.is_only_one:
                self._tell_of_streams()
                return None
            try:
                return by_inductor(self._module, given, num_threads)
            except Exception as error:  # inductor's errors are of many types
                self._give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
                return None

    def _tell_of_streams(self) -> None:
        if not self._has_told_of_streams:
            self._has_told_of_streams = True
            self._tell("the node has other streams, which may draw random numbers meanwhile")

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        self._tell(problem)


def _as_foreseen(tensor: Tensor, spec: Spec) -> Tensor:
    """Return a result with the strides that the master foresaw. Raises UnforeseenOutputError for another shape."""
    if tensor.shape != spec.size or tensor.dtype is not spec.dtype:
        raise UnforeseenOutputError("code of inductor", f"{specs.describe(tensor)}, not {spec}")
    if tensor.stride() == spec.stride and tensor.storage_offset() == spec.offset:
        return tensor
    return conformed(tensor, spec)


def built(graph: Graph, plans: Mapping[int, Plan]) -> fx.GraphModule:
    """Return the graph as PyTorch's. Raises NotCompilableError. Its inputs: of the graph, externals, constants."""
    if graph.num_floats or graph.statics:
        raise NotCompilableError("a captured step runs operator by operator")
    if len(graph.calls) > MAX_CALLS:
        raise NotCompilableError(f"it has {len(graph.calls):,} operators: at most {MAX_CALLS:,} are compiled together")
    made = fx.Graph()
    nodes = {slot: made.placeholder(f"given_{slot}") for slot in range(graph.num_given)}
    for call in graph.calls:
        plan = _plan_of(call, plans)
        args, kwargs = _arguments(plan, [nodes[slot] for slot in call.inputs], [graph.floats[at] for at in call.floats])
        node = made.call_function(plan.function, args, dict(kwargs))
        for slot, place in zip(call.outputs, _places_of_results(plan), strict=True):
            nodes[slot] = node if place is None else made.call_function(operator.getitem, (node, place))
    made.output(tuple(nodes[slot] for slot in graph.outputs))
    return fx.GraphModule(torch.nn.Module(), made)


def _plan_of(call: GraphCall, plans: Mapping[int, Plan]) -> Plan:
    if call.plan in (Kind.KEEP_GENERATOR, Kind.RESTORE_GENERATOR):
        raise NotCompilableError("it keeps the state of a generator, as a checkpoint with dropout does")
    plan = plans[call.plan]
    if not isinstance(plan.function, torch._ops.OpOverload):  # it is refused, or has a workspace
        raise NotCompilableError(f"{plan.operator} can't be compiled")
    if plan.template.reshapes:
        raise NotCompilableError(f"{plan.operator} gives one of its arguments another shape")
    odd = next((spec for spec in plan.outputs if spec is not None and spec.device != "cpu"), None)
    if odd is not None:
        raise NotCompilableError(f"{plan.operator} makes a tensor on {odd.device}: it is compiled for CPUs only")
    # fx writes these names into the code that it executes: one that is no name must not come so far.
    unknown = plan.template.kwargs.keys() - {argument.name for argument in plan.function._schema.arguments}
    if unknown:
        raise NotCompilableError(f"{plan.operator} has no argument {min(unknown)!r}")
    return plan


def _arguments(plan: Plan, tensors: Sequence[fx.Node], floats: Sequence[float]) -> tuple[tuple[Any, ...], Keywords]:
    of_tensors, of_floats = iter(tensors), iter(floats)

    def filled(item: object) -> Any:
        if item is TENSOR:
            return next(of_tensors)
        if item is FLOAT:
            return next(of_floats)
        if item is GENERATOR:
            return None
        return [filled(each) for each in item] if type(item) is list else item

    args = tuple(filled(item) for item in plan.template.args)
    return args, {name: filled(item) for name, item in plan.template.kwargs.items()}


def _places_of_results(plan: Plan) -> Iterator[int | None]:
    """Yield for each new tensor its place in what the operator returns; None: it is all that this returns."""
    returns = [str(each.type) for each in plan.function._schema.returns]  # type: ignore[attr-defined]
    if len(returns) > 1 and any("List" in each for each in returns):
        raise NotCompilableError(f"{plan.operator} returns lists of tensors among others")
    is_one = returns == ["Tensor"]
    return (None if is_one else place for place, spec in enumerate(plan.outputs) if spec is not None)


def _specs_of_outputs(graph: Graph, plans: Mapping[int, Plan]) -> list[Spec]:
    made: dict[int, Spec] = {}
    for call in graph.calls:
        made.update(zip(call.outputs, [each for each in plans[call.plan].outputs if each is not None], strict=True))
    if not made.keys() >= set(graph.outputs):
        raise NotCompilableError("it returns what it was given")
    return [made[slot] for slot in graph.outputs]


def _written(graph: Graph, plans: Mapping[int, Plan]) -> tuple[int, ...]:
    """Return the slots of what is given, and may be written: itself, or a view of it."""
    roots = {slot: slot for slot in range(graph.num_given)}
    written: set[int] = set()
    for call in graph.calls:
        plan = plans[call.plan]
        touched = [roots[slot] for slot in call.inputs if slot in roots]
        if plan.writes:
            written.update(roots[call.inputs[place]] for place in plan.writes if call.inputs[place] in roots)
        may_be_view = any(each.alias_info is not None for each in plan.function._schema.returns)  # type: ignore[attr-defined]
        if touched and may_be_view:
            roots.update(dict.fromkeys(call.outputs, touched[0]))
    return tuple(sorted(slot for slot in written if slot < graph.num_inputs + len(graph.externals)))


def _is_of_indices(spec: Spec | None) -> bool:
    """Whether a tensor may hold indices of elements of another one."""
    return spec is not None and not (spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype is torch.bool)

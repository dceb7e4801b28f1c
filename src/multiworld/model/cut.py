"""Cuts a model into parts: measures it, decides where, builds the parts and checks that they equal the whole."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import torch
from torch import fx, nn

from .boundaries import Boundary, Layout
from .building import build
from .checks import ImpureError, check_kind, check_pure, problem_of
from .comparing import is_close, leaves, same
from .copying import private_copy, random_states_kept
from .measuring import Measured, can_be_sent, inputs_of, measure
from .partition import LayerCost, partition
from .rows import find_rows, other_values
from .signature import Signature
from .tracing.exported import trace_by_export
from .tracing.fast_path import packing_noted, without_fast_path
from .tracing.symbolic import NothingPinnedError, trace_by_fx, trace_by_fx_and_pin
from .tracing.traced import Example, Traced

if TYPE_CHECKING:
    from typing_extensions import Unpack

SECONDS_PER_BYTE = 3e-10
"""The time to send a byte between two processes of one host: about 3 GB/s."""
SECONDS_PER_TENSOR = 2e-5
"""The time to pack, send and unpack a small tensor."""
logger = logging.getLogger(__name__)
T = TypeVar("T")


class CutOptions(TypedDict, total=False):
    """How a model is cut; see ``cut_parts`` for the defaults."""

    repeats: int
    seconds_per_byte: float
    seconds_per_tensor: float
    max_param_bytes: int | None
    by_rows: bool


@dataclass(frozen=True)
class Part:
    """``by_rows``: each tensor that goes in or out has the rows in front, so that requests can be concatenated."""

    module: nn.Module
    by_rows: bool
    signature: Signature
    """The tensors that go in and come out with the example."""


def profile(module: nn.Module, example: Any, *, repeats: int = 5) -> list[LayerCost]:
    """Measure the cost of a model between each two places where it can be cut.

    ``example``: a payload: a tensor, or a list or dict of tensors, which ``forward`` takes as its positional or keyword
    arguments. The module stays as it is: a copy is measured, in evaluation mode. Raises ValueError if the module cannot
    be traced.
    """
    return _tried(module, example, 1, lambda _, traced: _Cuttable(traced, repeats, at_least=1).costs())


def cut(module: nn.Module, example: Any, num_stages: int, **options: Unpack[CutOptions]) -> list[nn.Module]:
    """Cut a model into modules that, called in a chain, return bitwise what the model returns in evaluation mode.

    If torch.export has to follow PyTorch's fast path for attention, the parts return what the model returns without
    that path: the same within rounding (see ``comparing.is_close``).

    The slowest part is as fast as the measured costs allow. The parts share the model's parameters and have copies of
    its buffers, under the same names. The model and its mode stay as they are; the parts are in evaluation mode. Skip
    connections become further tensors of the payload. A part raises PayloadMismatchError for a payload that does not
    fit the example.

    ``example``: as of ``profile``. Give it at least two rows, which tell the rows from other dimensions of size 1, and
    the usual size: the parts are balanced for it. ``by_rows``: cut only where every tensor has the rows in front, so
    that requests can be batched in every part; in the first part only if every input has its rows in front. The other
    options are those of ``cut_parts``.

    Raises ValueError for a model that cannot be traced, has too few places to cut, keeps state between calls, draws
    random numbers, or gives an answer that cannot be sent; TypeError for what is no module, or for an example that it
    cannot take.
    """
    return [part.module for part in cut_parts(module, example, num_stages, **options)]


def cut_parts(
    module: nn.Module,
    example: Any,
    num_stages: int,
    *,
    repeats: int = 5,
    seconds_per_byte: float = SECONDS_PER_BYTE,
    seconds_per_tensor: float = SECONDS_PER_TENSOR,
    max_param_bytes: int | None = None,
    by_rows: bool = False,
) -> list[Part]:
    """Cut as ``cut`` does, and return with each part its signature and whether its requests can be batched.

    ``repeats``: of each measurement. A tensor that crosses a boundary costs ``seconds_per_tensor``, and its bytes
    ``seconds_per_byte`` each. ``max_param_bytes``: of the weights of one part.
    """

    def attempt(own: nn.Module, traced: Traced) -> list[Part]:
        cuttable = _Cuttable(traced, repeats, at_least=num_stages, by_rows=by_rows)
        plan = partition(
            cuttable.costs(),
            num_stages,
            seconds_per_byte=seconds_per_byte,
            seconds_per_tensor=seconds_per_tensor,
            max_param_bytes=max_param_bytes,
        )
        logger.info("%s is cut at %s, for stages of %s s", type(module).__name__, plan.starts, plan.seconds)
        cuts = [cuttable.boundaries[start - 1] for start in plan.starts[1:]]
        parts = build(traced, cuttable.layout, cuts, own.state_dict().keys(), cuttable.rows.number)
        payloads = _check(private_copy(own), traced.example, example, parts)
        along_rows = [cuttable.takes_rows, *(place.by_rows for place in cuts), cuttable.gives_rows]
        return [
            Part(part, before and after, Signature.of(given, answer, rows=before, answer_rows=after))
            for part, before, after, given, answer in zip(
                parts, along_rows[:-1], along_rows[1:], payloads[:-1], payloads[1:], strict=True
            )
        ]

    return _tried(module, example, num_stages, attempt)


class _UnsuitableError(ValueError):
    """The graph of one way of tracing cannot be cut as asked. Another way may succeed."""


def _tried(module: nn.Module, example: Any, num_stages: int, attempt: Callable[[nn.Module, Traced], T]) -> T:
    """Try each way of tracing, and return the result of the first attempt that succeeds, of a copy of the module."""
    check_kind(module)
    bound = Example.bind(module, example)
    name = type(module).__name__
    with random_states_kept([*module.parameters(), *module.buffers(), *bound.values.values()]):
        own = private_copy(module)
        _check_behaviour(name, private_copy(own), bound)
        problems: dict[str, str] = {}  # each problem once, with the first way of tracing that met it
        for trace in (trace_by_fx, trace_by_fx_and_pin, trace_by_export):
            try:
                return attempt(own, trace(private_copy(own), bound))
            except NothingPinnedError:
                continue
            except _UnsuitableError as error:
                problems.setdefault(str(error), trace.__name__)
            except Exception as error:  # the model's own code may raise anything
                problems.setdefault(f"{type(error).__name__}: {_first_line(error)}", trace.__name__)
    reasons = "; ".join(f"{way}: {problem}" for problem, way in problems.items())
    raise ValueError(
        f"{name} cannot be cut into {num_stages} stages ({reasons}). Write the stages yourself, or ask for fewer."
    )


def _check_behaviour(name: str, module: nn.Module, bound: Example) -> None:
    """Raise ValueError for a model that no way of tracing can cut."""
    others = {parameter: other_values(value) for parameter, value in bound.values.items()}
    try:
        answer = check_pure(module, bound.values, others)
    except ImpureError as error:
        raise ValueError(f"{name} cannot be cut: {error}") from None
    except Exception as error:  # the model's own code may raise anything
        raise ValueError(
            f"{name} cannot be cut: with the example it raises {type(error).__name__}: {_first_line(error)}"
        ) from error
    problem = problem_of(answer)
    if problem is not None:
        raise ValueError(f"{name} cannot be served as it is: {problem}")


class _Cuttable:
    """A traced model as a chain of runs of operations between the places where it can be cut."""

    def __init__(self, traced: Traced, repeats: int, *, at_least: int, by_rows: bool = False) -> None:
        self.traced = traced
        self.layout = Layout(traced.module.graph)
        self.measured = measure(traced.module, inputs_of(traced), repeats)
        self.rows = find_rows(traced)
        found = self.layout.boundaries(self.measured, self.rows.nodes)
        self.boundaries = _usable(found, at_least, by_rows=by_rows)
        if by_rows and not (self.gives_rows and (self.takes_rows or at_least > 1)):
            what = "inputs" if self.gives_rows else "answers"
            raise _UnsuitableError(f"its {what} have no rows in front, so requests cannot be batched")
        if len(self.boundaries) + 1 < at_least:
            where = "at {} places of {} where requests can be batched" if by_rows else "at {} places of {}"
            raise _UnsuitableError(f"can be cut {where.format(len(self.boundaries), len(found))}")

    @property
    def takes_rows(self) -> bool:
        return all(node in self.rows.nodes for node in self.layout.nodes if node.op == "placeholder")

    @property
    def gives_rows(self) -> bool:
        return all(node in self.rows.nodes for node in self.layout.nodes[-1].all_input_nodes)

    def costs(self) -> list[LayerCost]:
        ends = [boundary.end for boundary in self.boundaries]
        runs = [
            self.layout.nodes[start:end] for start, end in zip([0, *ends], [*ends, len(self.layout.nodes)], strict=True)
        ]
        weights = [self._weights(run) for run in runs]
        holders = Counter(weight for held in weights for weight in held)
        return [
            LayerCost(
                name=_name(run, self.measured),
                seconds=sum(self.measured[node].seconds for node in run),
                param_bytes=sum(held.values()),
                out_bytes=after.size_bytes(self.measured) if after else 0,
                out_tensors=len(after.tensors) if after else 0,
                shared_bytes={weight: size_bytes for weight, size_bytes in held.items() if holders[weight] > 1},
            )
            for run, held, after in zip(runs, weights, [*self.boundaries, None], strict=True)
        ]

    def _weights(self, run: Sequence[fx.Node]) -> dict[int, int]:
        """Return the bytes of each weight that a part with this run holds."""
        module = self.traced.module
        made = [node for node in run if node not in self.layout.remade]
        held: list[object] = []
        for node in (*made, *self.layout.needed_weights(made)):
            if node.op == "call_module":
                child = module.get_submodule(str(node.target))
                held += [*child.parameters(), *child.buffers()]
            elif node.op == "get_attr":
                path, _, name = str(node.target).rpartition(".")
                held.append(getattr(module.get_submodule(path), name))
        return {id(value): value.numel() * value.element_size() for value in held if isinstance(value, torch.Tensor)}


def _usable(boundaries: list[Boundary], at_least: int, *, by_rows: bool) -> list[Boundary]:
    """Return the places where requests can be concatenated, or all places if those are too few and not ``by_rows``."""
    along_rows = [boundary for boundary in boundaries if boundary.by_rows]
    enough = along_rows and len(along_rows) + 1 >= at_least
    return along_rows if by_rows or enough else boundaries


def _name(nodes: Sequence[fx.Node], measured: Mapping[fx.Node, Measured]) -> str:
    """Return the name of the costliest operation of a run; a module has its path as a name."""
    costliest = max(nodes, key=lambda node: measured[node].seconds)
    return str(costliest.target) if costliest.op == "call_module" else costliest.name


def _check(module: nn.Module, bound: Example, example: Any, parts: Sequence[nn.Module]) -> list[Any]:
    """Run the parts in a chain, and compare the answer with that of the whole. Each payload is copied as if sent.

    Return the payloads: the example, and the answer of each part. Raises _UnsuitableError if the answers differ.
    """
    payloads = [example]
    with torch.no_grad():
        with packing_noted(module) as packing:
            whole = _answer(module, bound)
        payload = _mapped(example, torch.clone)
        for part in parts:
            payload = _mapped(part(payload), _received)
            payloads.append(payload)
        pieces = leaves(payload)
        if _all_same(whole, pieces):
            return payloads
        if torch.backends.mha.get_fastpath_enabled():
            with without_fast_path():
                slowly = _answer(module, bound)
            if _all_same(slowly, pieces) and all(map(is_close, whole, pieces)) and not packing:
                return payloads
            if _all_same(slowly, pieces) and packing:
                raise _UnsuitableError(
                    f"{packing[0] or 'the encoder'} packs its rows by their padding mask, and gives zeros for padding; "
                    "set its use_nested_tensor = False"
                )
    raise _UnsuitableError("it returns something else in parts than as a whole: it was followed wrongly")


def _answer(module: nn.Module, bound: Example) -> list[torch.Tensor]:
    return leaves(module(**{name: value.clone() for name, value in bound.values.items()}))


def _all_same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(map(same, ones, others))


def _mapped(payload: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(payload, torch.Tensor):
        return change(payload)
    if isinstance(payload, Mapping):
        return {name: _mapped(value, change) for name, value in payload.items()}
    return [_mapped(value, change) for value in payload]


def _received(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as another process receives it: contiguous, without a graph, in memory of its own."""
    if not can_be_sent(tensor):
        raise TypeError(f"a part returned a tensor of type {tensor.dtype} and layout {tensor.layout}; no such is sent")
    plain = tensor.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
    return plain.clone(memory_format=torch.contiguous_format)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]

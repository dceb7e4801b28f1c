"""Learn what a stage's work takes, as far as it shows: a tensor, a list, or a dict of named tensors."""

from __future__ import annotations

import collections.abc
import dis
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..model.signature import Kind, Signature
from .graph import INPUT, Graph, Stage

DICT_METHODS = ("get", "items", "keys", "values")


@dataclass(frozen=True)
class Reads:
    """The names that a work looks for in a dict: ``needed`` ones without asking whether they are there, of all that are
    ``known``. ``is_all``: it does nothing else with the dict."""

    needed: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    is_all: bool = False


def signature_of(graph: Graph) -> Signature | None:
    """Return what a pipeline takes and gives, as far as its stages say or show; None: nothing is known.

    The first that knows decides how the tensors go in: what a stage declares, or has from the example of which its
    model was cut; its canary; the annotation of its parameter; and what its code does with that.
    """
    first: Signature | None = None
    for name in graph.downstream("gateway"):
        first = first or _taken(graph.stages[name])
    last = graph.stages[graph.outputs[0]].signature if len(graph.outputs) == 1 else None
    return Signature.joined(first, last)


def kind_of_work(work: Any, index: int = 0) -> Kind | None:
    """Return what its parameter with that index is, by its annotation, or by what its code does with it."""
    function, parameter = _function_of(work, index)
    if parameter is None:
        return None
    return _annotated(function, parameter) or _used(function, parameter)


def _function_of(work: Any, index: int) -> tuple[Any, str | None]:
    """Return what is called with a request, and its parameter with that index, if there is one."""
    if isinstance(work, str):
        work = _found(work)
    if isinstance(work, nn.Sequential):
        return _function_of(work[0], 0) if len(work) else (None, None)
    if isinstance(work, type):
        function: Any = work.forward if issubclass(work, nn.Module) else work.__call__
        index += 1
    elif isinstance(work, nn.Module):
        function = work.forward
    elif inspect.isroutine(work):
        function = work
    else:
        function = getattr(work, "__call__", None)  # noqa: B004 - the method itself
    return function, _parameter(function, index)


def _taken(stage: Stage) -> Signature | None:
    if stage.signature is not None and stage.signature.takes is not None:
        return stage.signature
    index = stage.inputs.index(INPUT) if stage.inputs else 0
    if stage.canary is not None and stage.canary is not False:
        is_tuple = stage.inputs is not None and len(stage.inputs) > 1
        canary = stage.canary[index] if is_tuple else stage.canary
        signature = Signature.of(canary, rows=stage.batch is not False)
        return _of_canary(signature, stage.work, index) if signature.takes == "dict" else signature
    kind = kind_of_work(stage.work, index)
    return None if kind is None else Signature(takes=kind)


def _of_canary(signature: Signature, work: Any, index: int) -> Signature:
    """Return what a canary shows as what it is, an example: the work may need less than that, and take more.

    It needs the names that its annotation, a TypedDict, requires; else those that its code reads without asking whether
    they are there. Where neither shows, the example is all that is known.
    """
    function, parameter = _function_of(work, index)
    reads = None if parameter is None else _required(function, parameter) or _read(function, parameter)
    if reads is None:
        return signature
    return replace(
        signature,
        inputs=tuple(replace(spec, optional=spec.name not in reads.needed) for spec in signature.inputs),
        is_open=not reads.is_all or not reads.known <= {spec.name for spec in signature.inputs},
    )


def _found(name: str) -> Any:
    """Return what a name means, if its module has been imported; it is not imported here, which may take long."""
    module, _, attribute = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in attribute.split("."):
        value = getattr(value, part, None)
    return value


def _parameter(function: Any, index: int) -> str | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # it is none of Python
        return None
    if index >= len(parameters) or parameters[index].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        return None
    return parameters[index].name


def _hint(function: Any, parameter: str) -> Any:
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError, AttributeError, SyntaxError):  # a name that is there for a type checker alone
        return None
    return hints.get(parameter)


def _required(function: Any, parameter: str) -> Reads | None:
    """Return what a TypedDict that annotates the parameter says."""
    hint = _hint(function, parameter)
    if not typing.is_typeddict(hint):
        return None
    needed = frozenset(hint.__required_keys__)
    return Reads(needed, needed | hint.__optional_keys__, is_all=True)


def _annotated(function: Any, parameter: str) -> Kind | None:
    hint = _hint(function, parameter)
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type):
        return None
    if issubclass(kind, torch.Tensor):
        return "tensor"
    if issubclass(kind, collections.abc.Mapping) or typing.is_typeddict(kind):
        return "dict"
    return "list" if issubclass(kind, (list, tuple)) or kind is collections.abc.Sequence else None


def _used(function: Any, parameter: str) -> Kind | None:
    """Return "dict" for a function that looks for a name in its parameter, or takes that apart by names."""
    return "dict" if any(_is_of_dict(*steps, parameter) for steps in _steps(function)) else None


def _read(function: Any, parameter: str) -> Reads | None:
    """Return which names the code of a function looks for in its parameter; None: it takes that for no dict."""
    if _used(function, parameter) is None:
        return None
    indexed, asked = set(), set()
    num_loads = num_reads = 0
    for one, two, three in _steps(function):
        num_loads += _num_loads(one, parameter)
        if _is_subscript(one, two, three, parameter):
            indexed.add(str(two.argval))
        elif _loads(one, parameter) and _names(two, "get") and _is_text(three):
            asked.add(str(three.argval))
        elif _is_text(one) and _loads(two, parameter) and three.opname == "CONTAINS_OP":
            asked.add(str(one.argval))
        else:
            continue
        num_reads += 1
    return Reads(frozenset(indexed - asked), frozenset(indexed | asked), is_all=0 < num_loads == num_reads)


def _steps(function: Any) -> Iterator[tuple[dis.Instruction, dis.Instruction, dis.Instruction]]:
    function = inspect.unwrap(function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return _triples(code) if isinstance(code, types.CodeType) else iter(())


def _triples(code: types.CodeType) -> Iterator[tuple[dis.Instruction, dis.Instruction, dis.Instruction]]:
    """Return three instructions each, one after the other; also of what is defined inside, such as comprehensions."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PUSH_NULL", "COPY_FREE_VARS")]
    yield from zip(steps, steps[1:], [*steps[2:], steps[-1]], strict=False)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _triples(constant)


def _is_of_dict(one: dis.Instruction, two: dis.Instruction, three: dis.Instruction, parameter: str) -> bool:
    if _loads(one, parameter):
        if two.opname in ("DICT_MERGE", "DICT_UPDATE"):  # f(**x), {**x}
            return True
        return _names(two, *DICT_METHODS) or _is_subscript(one, two, three, parameter)  # x.items(), x["name"]
    return _is_text(one) and _loads(two, parameter) and three.opname == "CONTAINS_OP"  # "name" in x


def _is_subscript(one: dis.Instruction, two: dis.Instruction, three: dis.Instruction, parameter: str) -> bool:
    is_read = three.opname == "BINARY_SUBSCR" or (three.opname, three.argrepr) == ("BINARY_OP", "[]")
    return _loads(one, parameter) and _is_text(two) and is_read


def _names(step: dis.Instruction, *attributes: str) -> bool:
    """Whether it looks for such an attribute; tensors have values() too, if sparse."""
    return step.opname in ("LOAD_METHOD", "LOAD_ATTR") and str(step.argval) in attributes


def _is_text(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_CONST" and isinstance(step.argval, str)


def _loads(step: dis.Instruction, parameter: str) -> bool:
    names = _loaded(step)
    return bool(names) and bool(names[-1] == parameter)


def _num_loads(step: dis.Instruction, parameter: str) -> int:
    return _loaded(step).count(parameter)


def _loaded(step: dis.Instruction) -> tuple[Any, ...]:
    if not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return ()
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)  # some load two

"""Learn what a stage's work takes, as far as it shows: a tensor, a list, or a dict of named tensors."""

from __future__ import annotations

import collections.abc
import dis
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .graph import INPUT, Graph, Stage
from .signature import Kind, Signature

__all__ = ["kind_of_work", "signature_of"]

DICT_METHODS = ("get", "items", "keys", "values")


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
    if isinstance(work, str):
        work = _found(work)
    if isinstance(work, nn.Sequential):
        return kind_of_work(work[0]) if len(work) else None
    if isinstance(work, type):
        function: Any = work.forward if issubclass(work, nn.Module) else work.__call__
        index += 1
    elif isinstance(work, nn.Module):
        function = work.forward
    elif inspect.isroutine(work):
        function = work
    else:
        function = getattr(work, "__call__", None)  # noqa: B004 - the method itself
    parameter = _parameter(function, index)
    if parameter is None:
        return None
    return _annotated(function, parameter) or _used(function, parameter)


def _taken(stage: Stage) -> Signature | None:
    if stage.signature is not None and stage.signature.takes is not None:
        return stage.signature
    index = stage.inputs.index(INPUT) if stage.inputs else 0
    if stage.canary is not None and stage.canary is not False:
        is_tuple = stage.inputs is not None and len(stage.inputs) > 1
        return Signature.of(stage.canary[index] if is_tuple else stage.canary, rows=stage.batch is not False)
    kind = kind_of_work(stage.work, index)
    return None if kind is None else Signature(takes=kind)


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


def _annotated(function: Any, parameter: str) -> Kind | None:
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError, AttributeError, SyntaxError):  # a name that is there for a type checker alone
        return None
    hint = hints.get(parameter)
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
    function = inspect.unwrap(function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    return "dict" if any(_is_of_dict(*steps, parameter) for steps in _triples(code)) else None


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
        if two.opname in ("LOAD_METHOD", "LOAD_ATTR"):  # x.items(); tensors have values() too, if sparse
            return str(two.argval) in DICT_METHODS
        is_name = two.opname == "LOAD_CONST" and isinstance(two.argval, str)
        return is_name and (three.opname == "BINARY_SUBSCR" or (three.opname, three.argrepr) == ("BINARY_OP", "[]"))
    is_name = one.opname == "LOAD_CONST" and isinstance(one.argval, str)
    return is_name and _loads(two, parameter) and three.opname == "CONTAINS_OP"  # "name" in x


def _loads(step: dis.Instruction, parameter: str) -> bool:
    if not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return False
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # some load two
    return bool(names[-1] == parameter)

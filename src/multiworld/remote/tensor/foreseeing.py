"""Foresee what an operator returns: run it once on tensors without data, and write down what a call of it sends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..protocol.outcomes import flat
from ..protocol.specs import Spec, describe, number_of, spec_of
from ..protocol.template import FLOAT, GENERATOR, TENSOR, Keywords, Template
from .corrections import ASKED, CONTIGUOUS_OUT, corrected
from .in_place import check_in_place
from .plan import Path, Plan, Returns
from .refused import check_generator, check_operator, check_result
from .strides import as_with_data


class UnforeseeableError(Exception):
    """What the operator returns depends on data, or has no kernel for tensors without data."""


def foresee(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords, *, floats_matter: bool) -> Plan:
    """Return a plan for such calls.

    Raises UnforeseeableError, and what the operator raises for arguments that do not fit.
    """
    check_operator(func)
    if is_unforeseeable(func, args):
        raise UnforeseeableError
    call = Call(cls, func, args, kwargs, floats_matter=floats_matter)
    returned = corrected(func, args, call.run())
    found = flat(returned)
    for each in found:
        check_result(func, each)
    written = {id(tensor): path for path, tensor in call.metas.items()}
    device = call.device()
    outputs = tuple(None if each is None or id(each) in written else describe(each, device) for each in found)
    changed = call.changed()
    template = Template(
        operator=name_of(func),
        args=tuple(call.shown_args),
        kwargs=call.shown_kwargs,
        outputs=outputs,
        writes=call.writes(),
        reshapes=tuple((place, spec_of(changed[path])) for place, path in enumerate(call.metas) if path in changed),
    )
    numbers = tuple(number_of(spec) for spec in outputs if spec is not None)
    is_single = isinstance(returned, Tensor) and outputs[0] is not None
    returns = None if is_single else _returns(returned, written, itertools.count())
    return Plan(template, numbers, returns, changed, None if numbers else _same(returned, written))


def _same(returned: Any, written: Mapping[int, Path]) -> int | None:
    """Return the place of the argument that an operator without new tensors returns; -1: it returns None."""
    if returned is None:
        return -1
    argument, index = written.get(id(returned), ("", None))
    return argument if isinstance(argument, int) and index is None else None


def name_of(func: Any) -> str:
    """Return ``namespace.name.overload``."""
    return str(func)


def is_unforeseeable(func: Any, args: Sequence[Any]) -> bool:
    """Whether what it returns depends on data, or is no tensor."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if func in ASKED or torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return True
    return any(not _is_of_tensors(each.type) for each in func._schema.returns)


def floats_matter(func: Any) -> bool:
    """Whether the value of a float can change the shape of what it returns."""
    names = {argument.name for argument in func._schema.arguments}
    return func._schema.name in ("aten::arange", "aten::range") or bool(names & {"scale_factors", "scale_factor"})


def without_out(func: Any) -> Any:
    """Return the operator that makes new tensors where this one writes its ``out=``; None if there is none."""
    wanted = [(each.name, str(each.type)) for each in func._schema.arguments if not each.is_out]
    packet = func._overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        if [(each.name, str(each.type)) for each in other._schema.arguments] == wanted and not other._schema.is_mutable:
            return other
    return None


class Call:
    """One call, with tensors without data in place of remote ones. ``metas``: these by path."""

    def __init__(
        self, cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords, *, floats_matter: bool
    ) -> None:
        self._cls, self._func, self._args, self._kwargs = cls, func, args, kwargs
        self._floats_matter = floats_matter
        self.metas: dict[Path, Tensor] = {}
        self._specs: dict[Path, Spec] = {}
        self.shown_args = [self._shown(value) for value in args]
        self.shown_kwargs = {name: self._shown(value) for name, value in kwargs.items()}

    def run(self) -> Any:
        """Return what the operator returns of tensors without data."""
        args = [self._meta(value, place) for place, value in enumerate(self._args)]
        kwargs = {name: self._meta(value, name) for name, value in self._kwargs.items()}
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        check_in_place(self._func, args, kwargs)
        try:
            return as_with_data(self._func, args, kwargs, self._func(*args, **kwargs))
        except NotImplementedError as error:
            if self._func._schema.is_mutable and not self._func._schema.returns:
                return None  # it writes into its arguments, as a fused optimizer does
            raise UnforeseeableError from error

    def device(self) -> str:
        """Return where its results live: where it is told to, else with the first that is not on the CPU."""
        told = self._kwargs.get("device")
        if told is not None:
            return str(told)
        return next((spec.device for spec in self._specs.values() if spec.device != "cpu"), "cpu")

    def writes(self) -> tuple[int, ...]:
        """Return the places, among its tensors, of those that it writes."""
        arguments = self._func._schema.arguments
        by_name = {argument.name: argument for argument in arguments}
        places = []
        for place, (argument, _) in enumerate(self.metas):
            known = arguments[argument] if isinstance(argument, int) else by_name[argument]
            if known.alias_info is not None and known.alias_info.is_write:
                places.append(place)
        return tuple(places)

    def changed(self) -> dict[Path, int]:
        """Return the new specs of arguments that have another shape now."""
        found = {}
        outs = {argument.name for argument in self._func._schema.arguments if argument.is_out}
        for path, meta in self.metas.items():
            before = self._specs[path]
            after = describe(meta, before.device)
            if after != before and (after.size != before.size or path[0] not in outs):  # an ``out=`` that fits stays
                found[path] = after
        return {path: number_of(spec) for path, spec in self._with_strides_of_results(found).items()}

    def _with_strides_of_results(self, changed: dict[Path, Spec]) -> dict[Path, Spec]:
        """Give an ``out=`` that grew the strides that a new result has; the kernels without data make it contiguous."""
        names = [argument.name for argument in self._func._schema.arguments if argument.is_out]
        plain = without_out(self._func) if any(path[0] in names for path in changed) else None
        if plain is None or self._func in CONTIGUOUS_OUT:
            return changed
        args = [self._meta(value, place) for place, value in enumerate(self._args)]
        kwargs = {name: self._meta(value, name) for name, value in self._kwargs.items() if name not in names}
        with suppress(NotImplementedError, RuntimeError):
            results = as_with_data(plain, args, kwargs, plain(*args, **kwargs))
            for name, result in zip(names, flat(results), strict=False):
                spec = changed.get((name, None))
                if spec is not None and result is not None and tuple(result.shape) == spec.size:
                    changed[name, None] = spec._replace(stride=tuple(result.stride()))
        return changed

    def _meta(self, value: Any, argument: int | str) -> Any:
        if type(value) is self._cls:
            return self._meta_tensor(value, (argument, None))
        if isinstance(value, (list, tuple)):
            return [
                self._meta_tensor(each, (argument, index)) if type(each) is self._cls else each
                for index, each in enumerate(value)
            ]
        if isinstance(value, torch.Generator):
            return None
        return value

    def _meta_tensor(self, tensor: Any, path: Path) -> Tensor:
        spec = self._specs[path] = spec_of(tensor._spec)
        meta = self.metas[path] = meta_of(spec)
        return meta

    def _shown(self, value: Any) -> Any:
        if type(value) is self._cls:
            return TENSOR
        if type(value) is float and not self._floats_matter:
            return FLOAT
        if isinstance(value, (list, tuple)):
            return [self._shown(each) for each in value]
        if isinstance(value, torch.Generator):
            check_generator(self._func, value)
            return GENERATOR
        return value


def meta_of(spec: Spec) -> Tensor:
    """Return a tensor without data that looks as a remote one."""
    if spec.offset:
        last = sum((length - 1) * stride for length, stride in zip(spec.size, spec.stride, strict=True))
        num_elements = spec.offset + (last + 1 if 0 not in spec.size else 0)
        memory = torch.empty(num_elements, dtype=spec.dtype, device="meta")
        meta = memory.as_strided(spec.size, spec.stride, spec.offset)
    else:
        meta = torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device="meta")
    if spec.conj:
        torch._C._set_conj(meta, True)
    if spec.neg:
        torch._C._set_neg(meta, True)
    return meta


def _returns(item: Any, written: Mapping[int, Path], count: Iterator[int]) -> Returns:
    """Return what builds the like of ``item``, of new tensors and of arguments that were written."""
    if isinstance(item, Tensor):
        if id(item) in written:
            path = written[id(item)]
            return lambda new, args, kwargs: tensor_at(path, args, kwargs)
        place = next(count)
        return lambda new, args, kwargs: new[place]
    if isinstance(item, (list, tuple)):
        parts = [_returns(each, written, count) for each in item]
        kind = type(item)
        return lambda new, args, kwargs: kind(part(new, args, kwargs) for part in parts)
    return lambda new, args, kwargs: item


def tensor_at(path: Path, args: Sequence[Any], kwargs: Keywords) -> Any:
    """Return the argument at a path, or the element of it."""
    argument, index = path
    value = args[argument] if isinstance(argument, int) else kwargs[argument]
    return value if index is None else value[index]


def _is_of_tensors(returned: Any) -> bool:
    """Whether a type in a schema is a tensor, or a list of tensors."""
    return str(returned) in ("Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]")

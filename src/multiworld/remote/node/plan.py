"""A plan on its node: the operator of a template, and how a call's ids and floats become its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import MultiworldError
from ..protocol import specs
from ..protocol.outcomes import flat
from ..protocol.specs import Spec
from ..protocol.template import FLOAT, GENERATOR, TENSOR, Slot, Template
from .devices import NoSuchDeviceError, check_devices
from .operators import ALLOWED, Operator, OperatorRefusedError, find_operator
from .workspaces import WORKSPACES, with_workspace

Build = Callable[[Iterator[Tensor], Iterator[float]], Any]


class UnforeseenOutputError(MultiworldError):
    """An operator returned another tensor than the master foresaw (``reason``)."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(operator, reason)
        self.operator, self.reason = operator, reason

    def __str__(self) -> str:
        return f"{self.operator} returned another tensor than the master foresaw: {self.reason}"


class Plan:
    """``num_outputs``, ``num_tensors``: how many ids a call has of each. ``writes``: what it writes.

    ``native``: the same for ``native/remote.c``, once a call returned what the master foresaw; None if there is none.
    """

    __slots__ = (
        "_builders",
        "_checked",
        "_conform",
        "_keywords",
        "_plain",
        "_reshapes",
        "_single",
        "_workspace",
        "function",
        "is_plain",
        "is_usual",
        "native",
        "num_outputs",
        "num_tensors",
        "numbers",
        "operator",
        "outputs",
        "template",
        "writes",
    )

    def __init__(self, template: Template, allowed: Iterable[str] = ALLOWED) -> None:
        """What the node refuses is refused in each call: the records of its calls are to be counted."""
        self.template, self.operator = template, template.operator
        self.function = _operator_or_refusal(template, allowed)
        self._workspace = WORKSPACES.get(template.operator)
        if self._workspace is not None:
            self.function = with_workspace(self.function)
        self.outputs, self.writes = template.outputs, template.writes
        self.num_outputs, self.num_tensors = template.num_outputs, template.num_tensors
        self.numbers = template.numbers
        self._single = len(template.outputs) == 1 and template.outputs[0] is not None
        self._reshapes = template.reshapes
        self._plain = not template.kwargs and not template.reshapes and all(item is TENSOR for item in template.args)
        self._builders = [_builder(item) for item in template.args]
        self._keywords = {name: _builder(item) for name, item in template.kwargs.items()}
        self._checked = self._conform = False
        self.is_usual = self.is_plain = False
        self.native: tuple[Any, ...] | None = None

    def call(self, tensors: Sequence[Tensor], floats: Sequence[float]) -> Any:
        """Return what the operator returns. Raises what it raises; TypeError if a tensor is none."""
        if self._plain:
            return self.function(*tensors)
        of_tensors, of_floats = iter(tensors), iter(floats)
        args = [build(of_tensors, of_floats) for build in self._builders]
        if not self._keywords and not self._reshapes:
            return self.function(*args)
        keywords = {name: build(of_tensors, of_floats) for name, build in self._keywords.items()}
        returned = self.function(*args, **keywords)
        for place, spec in self._reshapes:
            self._reshape(tensors[place], spec)
        return returned

    def results(self, returned: Any) -> list[Tensor]:
        """Return the tensors that get an id, as the master foresaw them. Raises UnforeseenOutputError."""
        found = flat(returned)
        if len(found) != len(self.outputs):
            raise UnforeseenOutputError(self.operator, f"{len(found)} tensors, not {len(self.outputs)}")
        if self._workspace is not None:
            return found  # type: ignore[return-value]
        pairs = [(each, spec) for each, spec in zip(found, self.outputs, strict=True) if spec is not None]
        if not self._checked:
            self._conform = not self._are_as_foreseen(pairs)
            self._single = self._single and isinstance(returned, Tensor)  # it may be a list of one
            self._checked = True
            self.is_usual = self._single and not self._conform
            self.is_plain = self.is_usual and self._plain and not self.writes
            self.native = self._native(returned) if self.is_settled else None
        if self._conform:
            return [conformed(tensor, spec) for tensor, spec in pairs]
        return [tensor for tensor, _ in pairs if tensor is not None]

    def _native(self, returned: Any) -> tuple[Any, ...] | None:
        """Return operator, arguments, names of the last of them, what is kept, how many numbers, whether it writes."""
        kept = None if self.is_usual else tuple(spec is not None for spec in self.outputs)
        if kept and any(kept) and not _is_flat(returned):
            return None
        items = tuple(
            None if item is GENERATOR else item for item in (*self.template.args, *self.template.kwargs.values())
        )
        names = tuple(self.template.kwargs) or None
        numbers = (self.num_outputs, self.num_tensors, self.template.num_floats)
        called = getattr(self.function, "_op", self.function)  # what PyTorch's own call calls, and nothing else
        return (called, items, names, kept if kept is None or any(kept) else (), *numbers, bool(self.writes))

    @property
    def is_settled(self) -> bool:
        """Whether a call returned what the master foresaw: others need not be looked at."""
        return self._checked and not self._conform and not self._reshapes and self._workspace is None

    def _reshape(self, tensor: Tensor, spec: Spec) -> None:
        """Give an argument the strides that the master foresaw. Raises UnforeseenOutputError."""
        there = specs.describe(tensor)
        if (there.size, there.dtype) != (spec.size, spec.dtype):
            raise UnforeseenOutputError(self.operator, f"an argument became {there}, not {spec}")
        if _significant(there) != _significant(spec):
            moved = conformed(tensor, spec)
            tensor.set_(moved.untyped_storage(), spec.offset, spec.size, spec.stride)

    def _are_as_foreseen(self, pairs: Sequence[tuple[Tensor | None, Spec]]) -> bool:
        """Look at all: one that is of another shape or dtype is an error."""
        same = [self._is_as_foreseen(tensor, spec) for tensor, spec in pairs]
        return all(same)

    def _is_as_foreseen(self, tensor: Tensor | None, spec: Spec) -> bool:
        if tensor is None:
            raise UnforeseenOutputError(self.operator, f"none in place of {spec}")
        if tensor.layout is not torch.strided:
            raise UnforeseenOutputError(self.operator, f"a tensor of layout {tensor.layout}")
        is_view = tensor._base is not None
        there = specs.describe(tensor, str(tensor.device))
        if (there.size, there.dtype, there.device) != (spec.size, spec.dtype, spec.device):
            raise UnforeseenOutputError(self.operator, f"{there}, not {spec}")
        same = _significant(there) == _significant(spec)
        if not same and is_view:
            raise UnforeseenOutputError(self.operator, f"a view {there}, not {spec}")
        return same


def _operator_or_refusal(template: Template, allowed: Iterable[str]) -> Operator:
    """Return the operator of a template, or a function that raises why this node does not call it."""
    try:
        operator = find_operator(template.operator, allowed)
        check_devices(template)
        return operator
    except (OperatorRefusedError, NoSuchDeviceError) as error:
        refusal = error

    def refuse(*args: object, **kwargs: object) -> Any:
        raise refusal

    return refuse


def _is_flat(returned: Any) -> bool:
    return isinstance(returned, (list, tuple)) and all(each is None or isinstance(each, Tensor) for each in returned)


def _significant(spec: Spec) -> tuple[object, ...]:
    """Return what decides where each element is: the strides of dimensions with one element do not."""
    if 0 in spec.size:
        return (spec.conj, spec.neg)
    strides = tuple(stride for length, stride in zip(spec.size, spec.stride, strict=True) if length > 1)
    return (strides, spec.offset, spec.conj, spec.neg)


def conformed(tensor: Tensor | None, spec: Spec) -> Tensor:
    """Return the values with the strides that the master foresaw."""
    assert tensor is not None
    if tensor.is_conj() and not spec.conj:
        tensor = tensor.resolve_conj()
    if tensor.is_neg() and not spec.neg:
        tensor = tensor.resolve_neg()
    if _significant(specs.describe(tensor)) == _significant(spec):
        return tensor
    last = sum((length - 1) * stride for length, stride in zip(spec.size, spec.stride, strict=True))
    memory = tensor.new_empty(spec.offset + last + 1 if tensor.numel() else spec.offset)
    return memory.as_strided(spec.size, spec.stride, spec.offset).copy_(tensor)


def _builder(item: object) -> Build:
    if type(item) is Slot:
        if item is TENSOR:
            return lambda tensors, floats: next(tensors)
        if item is FLOAT:
            return lambda tensors, floats: next(floats)
        assert item is GENERATOR
        return lambda tensors, floats: None  # the node's own
    if type(item) is list:
        builders = [_builder(each) for each in item]
        return lambda tensors, floats: [build(tensors, floats) for build in builders]
    return lambda tensors, floats: item

"""Describes what a model takes and returns: names, types and shapes of tensors. Pure; it does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..wire.messages import Json, from_json, to_json

Kind = Literal["tensor", "list", "dict"]
KINDS: tuple[Kind, ...] = ("tensor", "list", "dict")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor. ``dtype``: its name in torch, without ``torch.``; ``shape``: -1 for a dimension of any size.

    ``optional``: whether a payload may leave out this input.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    optional: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a tensor's name must be a text that is not empty, got {self.name!r}")
        if not isinstance(self.dtype, str) or not self.dtype:
            raise ValueError(f"tensor {self.name!r}: dtype must be a name such as 'float32', got {self.dtype!r}")
        object.__setattr__(self, "shape", tuple(self.shape))
        if not all(isinstance(size, int) and not isinstance(size, bool) and size >= -1 for size in self.shape):
            raise ValueError(f"tensor {self.name!r}: shape must have sizes from 0, or -1 for any, got {self.shape!r}")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The tensors that go in and come out. Empty ``inputs`` or ``outputs``: they are not known.

    ``takes``: the form of the payload; None: unknown. With ``takes="tensor"`` there is one input; with ``"list"`` the
    inputs are in the order of the list, so only the last ones may be optional. ``is_open``: whether other inputs are
    taken, too.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    takes: Kind | None = "dict"
    is_open: bool = False

    def __post_init__(self) -> None:
        if self.takes is not None and self.takes not in KINDS:
            raise ValueError(f"takes must be one of {', '.join(KINDS)}, or None, got {self.takes!r}")
        for what in ("inputs", "outputs"):
            specs = tuple(getattr(self, what))
            object.__setattr__(self, what, specs)
            if not all(isinstance(spec, TensorSpec) for spec in specs):
                raise TypeError(f"{what} must be TensorSpecs, got {specs!r}")
            if len({spec.name for spec in specs}) != len(specs):
                raise ValueError(f"{what} must have different names, got {', '.join(spec.name for spec in specs)}")
        if self.takes == "tensor" and len(self.inputs) > 1:
            raise ValueError(f'takes="tensor" is one input, got {len(self.inputs)}')
        optional = [spec.optional for spec in self.inputs]
        if self.takes == "list" and optional != sorted(optional):
            raise ValueError('takes="list": behind an input that is optional there may only be optional ones')

    @classmethod
    def of(
        cls,
        example: Any,
        answer: Any = None,
        *,
        rows: bool = True,
        answer_rows: bool | None = None,
        optional: Collection[str] = (),
    ) -> Signature:
        """Return the signature of an example and, if known, of its answer.

        ``rows``: whether the first dimension of all tensors is that of the rows, and so of any size; ``answer_rows``:
        the same of the answer (default: ``rows``); ``optional``: inputs that may be left out.
        """
        inputs = _specs(example, "input", has_rows=rows)
        return cls(
            inputs=tuple(replace(spec, optional=spec.name in optional) for spec in inputs),
            outputs=()
            if answer is None
            else _specs(answer, "output", has_rows=rows if answer_rows is None else answer_rows),
            takes=_kind(example),
        )

    @classmethod
    def joined(cls, first: Signature | None, last: Signature | None) -> Signature | None:
        """Return the signature of a chain with these first and last parts; None if neither is known."""
        given = first or cls(takes=None)
        joined = replace(given, outputs=() if last is None else last.outputs)
        return joined if joined.inputs or joined.outputs or joined.takes else None

    def to_json(self) -> Mapping[str, Json]:
        return to_json(self)

    @classmethod
    def from_json(cls, fields: object) -> Signature:
        """Return the signature whose ``to_json`` gave these fields. Raises MessageError."""
        return from_json(cls, fields)


def named_tensors(payload: Any, word: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a payload's tensors by name. Without a dict their names are ``names``, if as many, else ``word-0``, …"""
    if isinstance(payload, Mapping):
        return dict(payload)
    is_many = isinstance(payload, (list, tuple))
    tensors = list(payload) if is_many else [payload]
    if len(names) != len(tensors):
        names = [f"{word}-{index}" for index in range(len(tensors))] if is_many else [word]
    return dict(zip(names, tensors, strict=True))


def _kind(payload: Any) -> Kind:
    if isinstance(payload, Mapping):
        return "dict"
    return "list" if isinstance(payload, (list, tuple)) else "tensor"


def _specs(payload: Any, word: str, *, has_rows: bool) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(-1 if has_rows and index == 0 else int(size) for index, size in enumerate(tensor.shape)),
        )
        for name, tensor in named_tensors(payload, word).items()
    )

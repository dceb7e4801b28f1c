"""A call of a function that a node declared: its arguments, and what it may return. Pure.

Such a function is no operator: it may open files. So a node calls it only if its own side declared it by name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...errors import ProtocolError
from . import specs
from .records import HEAD, MAX_ID
from .specs import Spec
from .template import TENSOR, Keywords, Template, decode

CALL: Final = 60
"""The kind of its record."""
MAX_TENSORS: Final = 1 << 20
"""Tensors that one call may return: so many ids belong to it."""
_FIRST: Final = 1 << 62
_calls = itertools.count()


@dataclass(frozen=True, kw_only=True)
class DeclaredCall:
    """A function that a node calls for its master: ``package.module:function``. Raises ValueError for another form.

    ``replayable``: a second call with the same arguments returns the same, so that a lost node's tensors can be made
    again by it.
    """

    name: str
    replayable: bool = False

    def __post_init__(self) -> None:
        module, _, function = self.name.partition(":")
        if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"{self.name!r}: expected package.module:function")


def declared(calls: Iterable[str | DeclaredCall]) -> Mapping[str, DeclaredCall]:
    """Return declarations by name. Raises ValueError, TypeError."""
    if isinstance(calls, (str, DeclaredCall)):
        raise TypeError(f"calls={calls!r}: expected a list of them")
    found = [DeclaredCall(name=each) if isinstance(each, str) else each for each in calls]
    return {each.name: each for each in found}


def declared_by_options(calls: Iterable[str], replayable: Iterable[str]) -> tuple[DeclaredCall, ...]:
    """Return what ``--call`` and ``--replayable`` of a command line declare. Raises ValueError."""
    again = [DeclaredCall(name=name, replayable=True) for name in replayable]
    return tuple(declared([*calls, *again]).values())


class Like(NamedTuple):
    """What the master foresees that a call returns, as ``outcomes.show`` shows it."""

    shown: Any
    specs: tuple[Spec, ...]


class Call(NamedTuple):
    """``template``: the function's name, and its arguments. ``ids``: of the tensors among them.

    What it returns gets the ids from ``first``. ``request``: the node answers it with an ``Outcome``, unless the master
    said what comes (``like``).
    """

    request: int
    template: Template
    ids: tuple[int, ...]
    first: int
    is_replayable: bool = False
    like: Like | None = None


def next_first() -> int:
    """Return the first id of a new call. Other ids are small: they never meet these."""
    return _FIRST + next(_calls) * MAX_TENSORS


def call(asked: Call) -> bytes:
    like = None if asked.like is None else [asked.like.shown, [specs.to_json(each) for each in asked.like.specs]]
    shown = [
        asked.request,
        asked.template.encode().decode(),
        list(asked.ids),
        asked.first,
        asked.is_replayable,
        like,
    ]
    body = json.dumps(shown, separators=(",", ":")).encode()
    return HEAD.pack(CALL, len(body)) + body


def read_call(body: bytes) -> Call:
    """Raises ProtocolError."""
    try:
        request, template, ids, first, is_replayable, like = json.loads(body)
        asked = Call(
            request=request,
            template=decode(template.encode()),
            ids=tuple(ids),
            first=first,
            is_replayable=is_replayable is True,
            like=None if like is None else Like(like[0], tuple(specs.from_json(each) for each in like[1])),
        )
        if any(type(each) is not int or not 0 <= each < MAX_ID - MAX_TENSORS for each in (request, *ids, first)):
            raise ValueError("an impossible id")
        if asked.template.num_tensors != len(asked.ids):
            raise ValueError(f"{len(asked.ids)} ids for {asked.template.num_tensors} tensors")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a bad call: {type(error).__name__}: {error}") from None
    return asked


def arguments(template: Template, tensors: Sequence[Any]) -> tuple[list[Any], Keywords]:
    """Return the arguments of a call, with tensors in their places."""
    given = iter(tensors)
    args = [_filled(item, given) for item in template.args]
    return args, {name: _filled(item, given) for name, item in template.kwargs.items()}


def _filled(item: Any, tensors: Iterator[Any]) -> Any:
    if item is TENSOR:
        return next(tensors)
    return [_filled(each, tensors) for each in item] if type(item) is list else item

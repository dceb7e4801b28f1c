"""``nodes[1].call("package.module:function", ...)``: what the node already has stays there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..errors import CallNotDeclaredError, UnsupportedOperationError
from ..protocol import calls, specs, values
from ..protocol.calls import Call, DeclaredCall, Like
from ..protocol.messages import Outcome
from ..protocol.outcomes import read, show
from ..protocol.template import TENSOR, Keywords, Template
from ..session.origins import here
from ..session.session import Session
from .dispatch import sent_if_small
from .places import of_several_nodes
from .wrapping import make


def call(cls: type[Any], session: Session, name: str, args: Sequence[Any], kwargs: Keywords, like: Any) -> Any:
    """Return what a function of the node's returned: numbers as they are, tensors as remote ones.

    A sync point, unless ``like`` says what is returned. Raises CallNotDeclaredError, RemoteOperationError,
    NodeDeadError; TypeError for what does not travel.
    """
    session.check_usable(name)
    declared = _declaration(session, name)
    session.before_call(declared, here())
    arguments = _Arguments(cls, session, name)
    template = Template(
        operator=name,
        args=tuple(arguments.shown(value, f"argument {place}") for place, value in enumerate(args)),
        kwargs={key: arguments.shown(value, f"argument {key}") for key, value in kwargs.items()},
        outputs=(),
    )
    foreseen = None if like is None else _like(cls, name, like)
    first = calls.next_first()

    def record(request: int) -> bytes:
        return calls.call(Call(request, template, tuple(arguments.ids), first, declared.replayable, foreseen))

    if foreseen is not None:
        session.emit(record(0), name)
        return read(foreseen.shown, _made(cls, session, foreseen.specs, first))
    outcome = session.request(record, name)
    assert isinstance(outcome, Outcome)
    return read(outcome.shown, _made(cls, session, [specs.from_json(each) for each in outcome.specs], first))


def _declaration(session: Session, name: str) -> DeclaredCall:
    """Raises CallNotDeclaredError. The node looks again: what it executes is its own decision."""
    known = {} if session.hello is None else session.hello.calls
    if name not in known:
        raise CallNotDeclaredError(session.number, name, tuple(known))
    return DeclaredCall(name=name, replayable=known[name])


class _Arguments:
    """Arguments as they travel. ``ids``: of the tensors among them. A small tensor of the master is sent."""

    def __init__(self, cls: type[Any], session: Session, name: str) -> None:
        self.ids: list[int] = []
        self._kept: list[Any] = []  # a small tensor that was sent lives until the call is queued
        self._cls, self._session, self._name = cls, session, name

    def shown(self, value: Any, what: str) -> Any:
        if isinstance(value, Tensor):
            self.ids.append(self._id_of(value, what))
            return TENSOR
        if isinstance(value, (list, tuple)):
            return [self.shown(each, what) for each in value]
        try:
            values.to_json(value)
        except TypeError as error:
            raise TypeError(
                f"{self._name}: {what}: {error}. Tensors, numbers, strings, dtypes, None, and lists of them can be"
            ) from None
        return value

    def _id_of(self, tensor: Any, what: str) -> int:
        if tensor.requires_grad:
            raise UnsupportedOperationError(
                self._name,
                f"{what} requires a gradient, which can't pass through a function of the node's",
                "Pass tensor.detach()",
            )
        if type(tensor) is not self._cls:
            tensor = sent_if_small(self._cls, self._name, self._session, tensor)
            self._kept.append(tensor)
        elif tensor._session is not self._session:
            raise of_several_nodes(self._name, self._session, tensor._session)
        return tensor._id  # type: ignore[no-any-return]


def _like(cls: type[Any], name: str, like: Any) -> Like:
    """Return what is foreseen. Tensors in it, also "meta" ones, say shape, dtype and device."""
    try:
        shown, tensors = show(like)
    except TypeError as error:
        raise TypeError(f"{name}: like=: {error}") from None
    foreseen: list[Any] = tensors
    return Like(shown, tuple(each.spec if type(each) is cls else specs.describe(each) for each in foreseen))


def _made(cls: type[Any], session: Session, described: Sequence[specs.Spec], first: int) -> list[Any]:
    return [make(cls, session, specs.number_of(spec), first + place) for place, spec in enumerate(described)]

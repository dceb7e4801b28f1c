"""``remote.compile``: a function whose forward, and whose backward, go to the node as one message each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import update_wrapper
from typing import Any, Final, Generic, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ..errors import CaptureError
from ..session.origins import here
from ..session.session import Session
from ..tensor.moving import send
from ..tensor.remote_tensor import RemoteTensor
from .block import present
from .tracing import Traced

P = ParamSpec("P")
T = TypeVar("T")

MAX_TRACED: Final = 64
"""Sets of arguments of one function that are kept; the one that was used longest ago goes."""
BACKENDS: Final = ("eager", "inductor")


def compile_function(function: Callable[P, T], *, backend: str = "eager") -> Compiled[P, T]:
    """Return a function that does the same on the node of its arguments, as one message, and another one backward.

    It is traced once for each set of shapes, dtypes and other arguments: its Python code does not run again for these.
    ``backend``: with "eager" the node executes the same operators, and results have the same bits. With "inductor" it
    compiles them in the first call, which takes seconds; results can differ in the last bits.

    Raises ValueError for another backend; CaptureError, when it is traced, for what can't be replayed, as a decision by
    a value.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    return Compiled(function, backend)


class Compiled(Generic[P, T]):
    """``num_traced``: how often the function was traced."""

    def __init__(self, function: Callable[P, T], backend: str = "eager") -> None:
        self.num_traced = 0
        self.backend = backend
        self._function = function
        self._traced: OrderedDict[Hashable, tuple[Traced, Shown]] = OrderedDict()
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        if present() is not None:  # it becomes a part of the step that is captured
            return self._function(*args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        session = next((each._session for each in leaves if isinstance(each, RemoteTensor)), None)
        if session is None:
            raise TypeError("a function of remote.compile needs a tensor of a node among its arguments: it runs there")
        leaves = [_there(session, each) if isinstance(each, Tensor) else each for each in leaves]
        tensors = [each for each in leaves if isinstance(each, RemoteTensor)]
        traced, shown = self._find(session, leaves, tree)
        results = _call(traced, tensors)
        return shown.filled(results)  # type: ignore[no-any-return]

    def _find(self, session: Session, leaves: Sequence[Any], tree: TreeSpec) -> tuple[Traced, Shown]:
        key = (session.streams.present, tree, _state(), tuple(_key_of(each) for each in leaves))
        known = self._traced.get(key)
        if known is not None and known[0].fits():
            self._traced.move_to_end(key)
            return known
        self._traced.pop(key, None)
        arguments = [(each._spec, each.requires_grad) for each in leaves if isinstance(each, RemoteTensor)]
        shown: list[Shown] = []

        def function(tensors: Sequence[RemoteTensor]) -> Sequence[Tensor]:
            given = iter(tensors)
            filled = [next(given) if isinstance(each, RemoteTensor) else each for each in leaves]
            args, kwargs = tree_unflatten(filled, tree)
            shown.append(Shown(self._function(*args, **kwargs)))
            return shown[0].tensors()

        traced = Traced(function, session, arguments, is_compiled=self.backend == "inductor")
        self.num_traced += 1
        found = self._traced[key] = traced, shown[0].empty()
        if len(self._traced) > MAX_TRACED:
            self._traced.popitem(last=False)
        return found


class Shown:
    """What a function returned: its tensors, and how they stand in it."""

    def __init__(self, returned: object) -> None:
        self._leaves, self._tree = tree_flatten(returned)
        self._places = [place for place, each in enumerate(self._leaves) if isinstance(each, Tensor)]

    def tensors(self) -> list[Tensor]:
        return [self._leaves[place] for place in self._places]

    def empty(self) -> Shown:
        """Return itself without its tensors."""
        for place in self._places:
            self._leaves[place] = None
        return self

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return the like of it with other tensors."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self._tree)


def _call(traced: Traced, tensors: Sequence[RemoteTensor]) -> Sequence[Tensor]:
    if not any(traced.differentiable):
        return traced.forward(tensors)[0]
    return _Run.apply(traced, len(tensors), *tensors, *traced.outsiders)  # type: ignore[no-any-return,no-untyped-call]


class _Run(torch.autograd.Function):
    """One call: its backward is a message, too. A second derivative is refused."""

    @staticmethod
    def forward(ctx: Any, traced: Traced, num_arguments: int, *tensors: RemoteTensor) -> tuple[RemoteTensor, ...]:
        arguments = tensors[:num_arguments]
        results, saved = traced.forward(arguments)
        checked = traced.checked
        ctx.traced, ctx.num_arguments, ctx.num_results = traced, num_arguments, len(results)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[each for each, has in zip(results, traced.differentiable, strict=True) if not has]
        )
        ctx.save_for_backward(
            *[arguments[place] for place in checked.arguments],
            *[results[place] for place in checked.results],
            *saved,
            *checked.outside,
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        traced: Traced = ctx.traced
        with torch.no_grad():
            found: Sequence[Tensor | None] = traced.backward(gradients, traced.available_of(ctx.saved_tensors))
        if torch.is_grad_enabled():  # of backward(create_graph=True)
            found = _refusing_more(found)
        return None, None, *found


def _refusing_more(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients whose own derivative is an error: PyTorch would take them for constants."""
    anchor = torch.empty(0, device="cpu", requires_grad=True)
    refusing = iter(_RefuseMore.apply(here(), anchor, *[each for each in gradients if each is not None]))  # type: ignore[no-untyped-call]
    return [None if each is None else next(refusing) for each in gradients]


class _RefuseMore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, line: str, anchor: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        ctx.line = line
        return gradients

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> NoReturn:
        raise CaptureError(
            "remote.compile",
            ctx.line,
            "a gradient of a compiled function is differentiated again",
            "Call the function without remote.compile where create_graph=True",
        )


def _there(session: Session, tensor: Tensor) -> Tensor:
    """Return a tensor of the node: one of the master is sent."""
    if isinstance(tensor, RemoteTensor):
        return tensor
    return send(RemoteTensor, session, tensor)  # type: ignore[no-any-return]


def _key_of(value: object) -> Hashable:
    """Return what tells arguments apart for which the function may do something else. Raises TypeError."""
    if isinstance(value, RemoteTensor):
        return value._spec, value.requires_grad
    if type(value) is float:
        return float, value.hex()
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"an argument of type {type(value).__name__} of a function of remote.compile: expected tensors, numbers "
            "and other values that can be hashed, in lists, tuples and dicts"
        ) from None
    return type(value), value


def _state() -> Hashable:
    """Return what changes the operators of a function beside its arguments."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
    )

"""Every operator on a remote tensor comes here: with a plan that is known, it is a few numbers in the node's queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..errors import PlaceMismatchError
from ..protocol.template import Keywords
from ..session.open_connections import session_of
from ..session.session import Session
from .foreseeing import meta_of, name_of
from .gradients import gradient_on
from .moving import Place, copied, send, values_of
from .naming import node_of
from .places import of_several_nodes
from .planned import BY_VALUE, PLANS, apply_changes, run_first
from .refused import check_generator
from .special import SPECIAL
from .splitting import split_by_node

SMALL_BYTES: Final = 4096
"""A tensor of the master travels with a call if it is no larger; a larger one has to be sent by the user."""

_NOTHING: Final[Keywords] = {}
_ONLY_READ: Final = "state_steps"
"""The schema of fused Adagrad says that it writes them, and it does not."""
_ADD: Final = torch.ops.aten.add.Tensor
_FLOAT: Final = 0.5  # stands for any float in a key


def dispatch(cls: type[Any], func: Any, types: Any, args: Sequence[Any] = (), kwargs: Keywords | None = None) -> Any:
    """Called by PyTorch below autograd. Keys tell numbers from specs, and floats only from other types."""
    session: Session | None = None
    key: list[Any] = [id(func)]  # operators are never freed, and hash slowly
    ids: list[int] = []
    floats: list[float] = []
    for value in args if not kwargs else (*args, *kwargs.values()):
        kind = type(value)
        if kind is cls:
            if session is None:
                session = value._session
            elif value._session is not session:
                return _dispatch_mixed(cls, func, args, kwargs or _NOTHING)
            key.append(value._spec)
            ids.append(value._id)
        elif kind is int:
            key.append((1, value))
        elif kind is float:
            key.append(_FLOAT)
            floats.append(value)
        elif value is None or kind is bool:
            key.append((2, value))
        elif kind is list or kind is tuple:
            part: list[Any] = []
            for each in value:
                of = type(each)
                if of is cls:
                    if session is None:
                        session = each._session
                    elif each._session is not session:
                        return _dispatch_mixed(cls, func, args, kwargs or _NOTHING)
                    part.append(each._spec)
                    ids.append(each._id)
                elif of is float:
                    part.append(_FLOAT)
                    floats.append(each)
                elif of is int:
                    part.append((1, each))
                elif isinstance(each, Tensor):
                    return _dispatch_mixed(cls, func, args, kwargs or _NOTHING)
                else:
                    part.append((2, each))
            key.append(tuple(part))
        elif isinstance(value, Tensor):
            return _dispatch_mixed(cls, func, args, kwargs or _NOTHING)
        elif kind is torch.Generator:
            check_generator(func, value)
            key.append("generator")
        else:
            key.append(value)
    if kwargs:
        key.append(tuple(kwargs))
    by_value = key[0] in BY_VALUE
    known = (*key, tuple(floats)) if by_value else tuple(key)
    plan = PLANS.get(known)
    if plan is not None:
        assert session is not None
        result = plan.run(cls, session, ids, [] if by_value else floats, args, kwargs or _NOTHING)
        if plan.changes:
            apply_changes(plan, args, kwargs or _NOTHING)
        return result
    special = SPECIAL.get(func)
    if special is not None:
        return special(cls, func, args, kwargs or _NOTHING)
    assert session is not None, f"{func} without a remote tensor"
    if kwargs and node_of(kwargs.get("device")) is not None:
        return _on_device(cls, func, args, kwargs, session)
    return run_first(cls, func, args, kwargs or _NOTHING, session, tuple(key), ids, floats)


def _on_device(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords, session: Session) -> Any:
    """A call that says ``device="remote:N"``: it runs where its operands are, and the result goes to that node."""
    number = node_of(kwargs["device"])
    there = session_of(number or 0)
    told = {**kwargs, "device": torch.device("cpu")}
    result = func(*args, **told)
    return result if there is session else copied(cls, result, Place(there), name_of(func))


def _dispatch_mixed(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> Any:
    """A call with tensors of the master, or of several nodes: small ones of the master travel."""
    special = SPECIAL.get(func)
    if special is not None:
        return special(cls, func, args, kwargs)
    _check_written(cls, func, args, kwargs)
    if func is _ADD and torch._C._current_graph_task_id() != -1:  # gradients of a tensor of the master, from two places
        return func(*[values_of(each, "backward") if type(each) is cls else each for each in args], **kwargs)
    found = _tensors_of((*args, *kwargs.values()))
    sessions = [each._session for each in found if type(each) is cls]
    for session in sessions:
        if session is not sessions[0]:
            was_split, result = split_by_node(cls, func, args, kwargs)
            if was_split:
                return result
            raise of_several_nodes(name_of(func), sessions[0], session)

    in_backward = torch._C._current_graph_task_id() != -1
    if in_backward and any(each.is_meta for each in found):  # its kernels for zeros ask for a shape in this way
        return func(*[_without_data(cls, each) for each in args], **kwargs)

    def travel(value: Any) -> Any:
        if isinstance(value, Tensor) and type(value) is not cls:
            if in_backward:  # PyTorch's C++ makes zeros by the label, and so on the master
                return gradient_on(next(each for each in found if type(each) is cls), value)
            return sent_if_small(cls, name_of(func), sessions[0], value)
        if isinstance(value, (list, tuple)):
            return [travel(each) for each in value]
        return value

    sent = {name: travel(value) for name, value in kwargs.items()}
    return dispatch(cls, func, (), [travel(value) for value in args], sent)


def _check_written(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> None:
    """Raises PlaceMismatchError if a call writes a tensor of the master: what travels is a copy."""
    if not func._schema.is_mutable:
        return
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if argument.alias_info is None or not argument.alias_info.is_write or argument.name == _ONLY_READ:
            continue
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, Tensor) and type(each) is not cls:
                advice = "Fetch the other operands, or send this one"
                raise PlaceMismatchError(name_of(func), "the master, and is written", "a node", advice)


def sent_if_small(cls: type[Any], operation: str, session: Session, tensor: Tensor) -> Any:
    """Return a small tensor of the master on the node. Raises PlaceMismatchError for a large one."""
    if tensor.layout is torch.strided and tensor.nbytes <= SMALL_BYTES:
        return send(cls, session, tensor)
    raise PlaceMismatchError(
        operation,
        f"node {session.number}",
        f"the master (shape {tuple(tensor.shape)}, {tensor.dtype})",
        f"Send it first: nodes[{session.number}].send(tensor), or tensor.to('remote:{session.number}')",
    )


def _without_data(cls: type[Any], value: Any) -> Any:
    return meta_of(value.spec) if type(value) is cls else value


def _tensors_of(values: Sequence[Any]) -> list[Any]:
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors_of(value)
    return found

"""Run an operator on a node by its plan; the first call of a kind makes the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..protocol.template import Keywords
from ..session.session import Session
from .asking import ask
from .foreseeing import UnforeseeableError, floats_matter, foresee, name_of, tensor_at
from .metadata import take_spec
from .plan import Plan, PlanCache

PLANS: Final = PlanCache()
BY_VALUE: Final[set[int]] = set()
"""Operators (``id``) for which the value of a float can matter: it is a part of the key."""


def run_first(
    cls: type[Any],
    func: Any,
    args: Sequence[Any],
    kwargs: Keywords,
    session: Session,
    key: tuple[Any, ...],
    ids: list[int],
    floats: list[float],
) -> Any:
    """Make the plan of a call, keep it under ``key`` and run it. What can't be foreseen is asked."""
    by_value = note_floats(func)
    plan = _foreseen(cls, func, args, kwargs, floats_matter=by_value)
    if plan is None:
        return ask(cls, session, func, args, kwargs)
    PLANS.add((*key, tuple(floats)) if by_value else key, plan)
    result = plan.run(cls, session, ids, [] if by_value else floats, args, kwargs)
    apply_changes(plan, args, kwargs)
    return result


def create(cls: type[Any], session: Session, func: Any, args: Sequence[Any], kwargs: Keywords) -> Any:
    """Call an operator that has no tensors among its arguments on a node. Raises NodeDeadError at once."""
    session.check_usable(name_of(func))
    key = (id(func), _frozen(args), _frozen(kwargs))
    plan = PLANS.get(key)
    if plan is not None:
        return plan.run(cls, session, [], [], args, kwargs)
    plan = _foreseen(cls, func, args, kwargs, floats_matter=True)
    if plan is None:
        return ask(cls, session, func, args, kwargs)
    PLANS.add(key, plan)
    return plan.run(cls, session, [], [], args, kwargs)


def _foreseen(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords, *, floats_matter: bool) -> Plan | None:
    """Return the plan of a call; None if the node has to be asked, whose errors are then not those of the search."""
    try:
        return foresee(cls, func, args, kwargs, floats_matter=floats_matter)
    except UnforeseeableError:
        return None


def note_floats(func: Any) -> bool:
    """Return whether the value of a float can matter to the operator."""
    if id(func) in BY_VALUE:
        return True
    if floats_matter(func):
        BY_VALUE.add(id(func))
        return True
    return False


def apply_changes(plan: Plan, args: Sequence[Any], kwargs: Keywords) -> None:
    for path, number in plan.changes.items():
        take_spec(tensor_at(path, args, kwargs), number)


def _frozen(values: Any) -> Any:
    """Return a key that tells values of different types apart."""
    if isinstance(values, Mapping):
        return tuple((name, _frozen(value)) for name, value in values.items())
    if isinstance(values, (list, tuple)):
        return tuple(_frozen(value) for value in values)
    return (type(values), values)

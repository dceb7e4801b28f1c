"""Operators on lists of tensors, as those of optimizers, with tensors of several nodes: one call for each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..protocol.template import Keywords
from ..session.session import Session
from .foreseeing import name_of

_OF_LISTS = ("aten._foreach_", "aten._fused_")


def split_by_node(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> tuple[bool, Any]:
    """Call an operator on lists once for each node that has some of their tensors.

    Return whether it could be split, and its result.
    """
    if not name_of(func).startswith(_OF_LISTS):
        return False, None
    length = len(args[0])
    places: dict[Session, list[int]] = {}
    for place in range(length):
        at_place = [value[place] for value in (*args, *kwargs.values()) if _is_list(value, length)]
        sessions = {each._session for each in at_place if type(each) is cls}
        if len(sessions) != 1:
            return False, None
        places.setdefault(sessions.pop(), []).append(place)
    results: list[Any] = [None] * length
    has_results = False
    for of_node in places.values():
        told = {name: _picked(value, length, of_node) for name, value in kwargs.items()}
        returned = func(*[_picked(value, length, of_node) for value in args], **told)
        if returned is not None:
            has_results = True
            for place, each in zip(of_node, returned, strict=True):
                results[place] = each
    return True, results if has_results else None


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == length


def _picked(value: Any, length: int, places: Sequence[int]) -> Any:
    return [value[place] for place in places] if _is_list(value, length) else value

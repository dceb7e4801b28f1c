"""Calls that the children of this process declare: which options tell them so, and whether the modules are there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from ..protocol.calls import DeclaredCall


def options_of(calls: Sequence[DeclaredCall]) -> list[str]:
    """Return the options of a node's program; it looks for modules where this process does."""
    if not calls:
        return []
    names = [f"--{'replayable' if each.replayable else 'call'}={each.name}" for each in calls]
    return [*names, *(f"--path={each}" for each in sys.path if each)]


def check_module(call: DeclaredCall) -> None:
    """Raises ValueError if its module can't be there in another process of this host."""
    module = call.name.partition(":")[0]
    if module == "__main__":
        raise ValueError(f"{call.name!r}: other processes can't import the program itself: move it to a module")
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ImportError:
        is_there = False
    if not is_there:
        raise ValueError(f"{call.name!r}: there is no module {module}")

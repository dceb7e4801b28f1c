"""Checks of what a record or a message says, before it is used. Pure."""

from __future__ import annotations

from typing import Any


def text(value: object) -> str:
    """Raises TypeError."""
    if type(value) is not str:
        raise TypeError(f"a text is needed, not {str(value)[:80]!r}")
    return value


def list_of(value: object) -> list[Any]:
    """Raises TypeError."""
    if type(value) is not list:
        raise TypeError(f"a list is needed, not {str(value)[:80]!r}")
    return value


def count(value: object, limit: int) -> int:
    """Return a number from 0 to less than ``limit``. Raises ValueError."""
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"a number from 0 to {limit - 1} is needed, not {str(value)[:80]!r}")
    return value

"""Finds and sets up a work: the module, callable or class of the user that a process is to call."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any


def import_work(name: str) -> Any:
    """Return what ``"package.module:attribute"`` names. Raises AttributeError; errors of the import pass through."""
    module, _, attribute = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


async def set_up_work(work: Any, *, device: str = "cpu", name: str = "work") -> Callable[..., Any]:
    """Return a work ready to be called: a class is made, ``setup`` has run, a module is on ``device`` and evaluates.

    ``name``: of the work, for errors. Raises TypeError for what cannot be called, and the errors of the user's code.
    """
    if inspect.isclass(work):
        work = work()
    setup = getattr(work, "setup", None)
    if callable(setup):
        result = setup()
        if inspect.isawaitable(result):
            await result
    if not callable(work):
        raise TypeError(f"{name}: {work!r} cannot be called")
    evaluate, move = getattr(work, "eval", None), getattr(work, "to", None)
    if callable(evaluate) and callable(getattr(work, "state_dict", None)):
        evaluate()
        if callable(move) and device != "cpu":
            move(device)
    await asyncio.sleep(0)
    return work  # type: ignore[no-any-return]

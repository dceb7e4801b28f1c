"""What a user's code raises is its own: that it cancels itself or exits ends neither the loop nor who awaits it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import torch

__all__ = ["OverdueError", "contained", "place_of_error", "result_of", "users_traceback"]

T = TypeVar("T")
CALLED_OFF_S = 1.0  # for code that is cancelled to end
OURS = Path(__file__).parents[1]
NOT_THEIRS = (
    *(f"{OURS / part}/" for part in ("serving", "model", "world", "channel", "wire")),
    f"{Path(torch.__file__).parent}/",
    "<frozen ",
)
STANDARD = f"{Path(asyncio.__file__).parents[1]}/"  # and what is installed below it, which is theirs


class OverdueError(Exception):
    """The code did not come to its end in time. Its own TimeoutError is another matter."""


def contained(error: BaseException) -> Exception:
    """Return what was raised, as an error that concerns its request alone: a RuntimeError for what would end more."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, SystemExit):
        return RuntimeError(f"the work called sys.exit({error.code!r})")
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the work was cancelled by its own code")
    return RuntimeError(f"the work raised {type(error).__name__}: {error}")


def users_traceback(error: Exception) -> str:
    """Return the traceback from where the user's code begins, of the error or of its cause; else nothing."""
    cause: BaseException | None = error
    while cause is not None:
        trace = cause.__traceback__
        while trace is not None and not _is_theirs(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        if trace is not None:
            return "".join(traceback.format_exception(type(cause), cause, trace))
        cause = cause.__cause__
    return ""


def place_of_error(error: BaseException) -> str:
    """Return ``file.py:12``: the last line of the user's own code that it came through, else where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame.filename)]
    own = [frame for frame in theirs if "-packages/" not in frame.filename]
    found = (own or theirs or frames)[-1:]
    return f"{found[0].filename.rpartition('/')[2]}:{found[0].lineno}" if found else ""


def _is_theirs(path: str) -> bool:
    is_standard = path.startswith(STANDARD) and "-packages" not in path
    return not (is_standard or path.startswith(NOT_THEIRS))


async def result_of(work: Awaitable[T], limit_s: float | None = None) -> T:
    """Return its result, or raise what it raised; a RuntimeError in place of CancelledError and SystemExit of its own.

    Cancelled or overdue, it cancels the work, and waits a moment for its end. Raises OverdueError after ``limit_s``.
    """
    task = asyncio.ensure_future(_contained(work))
    try:
        await asyncio.wait({task}, timeout=limit_s)
    except asyncio.CancelledError:
        await _call_off(task)
        raise
    if not task.done():
        await _call_off(task)
        raise OverdueError
    if task.cancelled():
        raise contained(asyncio.CancelledError())
    return task.result()


async def _contained(work: Awaitable[T]) -> T:
    try:
        return await work
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit, and what libraries make of a panic: nobody would learn why it ended
        raise contained(error) from None


async def _call_off(task: asyncio.Future[T]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=CALLED_OFF_S)
    if task.done() and not task.cancelled():
        task.exception()  # nobody else looks at it

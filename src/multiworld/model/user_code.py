"""Contains what a user's code raises: if it exits or cancels itself, neither the event loop nor the caller ends."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
CALLED_OFF_S = 1.0  # how long cancelled code may take to end
OURS = Path(__file__).parents[1]
NOT_THEIRS = (
    *(f"{OURS / part}/" for part in ("serving", "model", "world", "channel", "wire")),
    f"{Path(torch.__file__).parent}/",
    "<frozen ",
)
STANDARD = f"{Path(asyncio.__file__).parents[1]}/"  # packages that are installed below it count as theirs


class OverdueError(Exception):
    """The code took too long. It does not stand for a TimeoutError that the code itself raises."""


def contained(error: BaseException) -> Exception:
    """Return the error as one that ends only its request: a RuntimeError in place of SystemExit and the like."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, SystemExit):
        return RuntimeError(f"the work called sys.exit({error.code!r})")
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the work was cancelled by its own code")
    return RuntimeError(f"the work raised {type(error).__name__}: {error}")


def users_traceback(error: Exception) -> str:
    """Return the traceback of the error or its cause, from the first frame of the user's code; empty without one."""
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
    """Return ``file.py:12``: the last line of the user's own code in the traceback, else where the error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame.filename)]
    own = [frame for frame in theirs if "-packages/" not in frame.filename]
    found = (own or theirs or frames)[-1:]
    return f"{found[0].filename.rpartition('/')[2]}:{found[0].lineno}" if found else ""


def _is_theirs(path: str) -> bool:
    is_standard = path.startswith(STANDARD) and "-packages" not in path
    return not (is_standard or path.startswith(NOT_THEIRS))


async def result_of(work: Awaitable[T], limit_s: float | None = None) -> T:
    """Return the result of a work, or raise what it raises: RuntimeError for its own CancelledError or SystemExit.

    Raises OverdueError after ``limit_s``. When overdue or cancelled, the work is cancelled and gets a moment to end.
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
    except BaseException as error:  # SystemExit, or a panic of a library: it would end the process without a reason
        raise contained(error) from None


async def _call_off(task: asyncio.Future[T]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=CALLED_OFF_S)
    if task.done() and not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log it

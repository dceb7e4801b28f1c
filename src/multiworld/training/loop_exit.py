"""Tell whether a loop over a generator was left by the program, with ``break`` or ``return``, or by an error.

The generator gets GeneratorExit in both cases, and no exception is "handled" there yet. What can be known: while an
error leaves a frame, the frame stands at the instruction that raised it: a traceback ends there. None ends at a
``break``, which only drops the generator.
"""

from __future__ import annotations

import dis
import gc
import inspect
from types import FrameType, TracebackType

RAISING = ("RAISE_VARARGS", "RERAISE")
"""An error that is raised again, by ``raise`` or after a ``finally``, gets no second traceback in its frame."""

YIELDING = ("YIELD_VALUE", "RESUME")
"""Where GeneratorExit reaches a generator; Python 3.13 has it come back to the second one."""


def is_left_by_error(frame: FrameType | None) -> bool:
    """Return whether an error leaves the loop. ``frame``: who runs while the generator is closed (its ``f_back``)."""
    while frame is not None:
        raised_at = [
            each.tb_lasti
            for each in gc.get_referrers(frame)
            if isinstance(each, TracebackType) and each.tb_frame is frame
        ]
        if frame.f_lasti not in raised_at and _instruction(frame, frame.f_lasti) not in RAISING:
            return False
        is_generator = bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
        if not is_generator or not any(_instruction(frame, each) in YIELDING for each in raised_at):
            return True
        frame = frame.f_back  # a generator around the loop got GeneratorExit, too: look who closed that one
    return False


def _instruction(frame: FrameType, at: int) -> str:
    return dis.opname[frame.f_code.co_code[at]]

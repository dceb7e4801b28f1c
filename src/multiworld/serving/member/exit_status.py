"""How a member's process ended, and what that says about starting it again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

IN_VAIN = 78
"""EX_CONFIG of sysexits.h: its host lacks what the program needs, and would however often it were started there."""


@dataclass(frozen=True)
class Ending:
    """``returncode``: below 0 after a signal. ``last_lines``: of its output.

    ``executing``: the ids of the requests that it was executing, as hexadecimal digits; None if that is not known.
    """

    returncode: int
    last_lines: list[str]
    executing: list[str] | None = None


def starts_again(returncode: int | None) -> bool:
    """Whether one that is kept is started again after it ended so."""
    return returncode not in (0, IN_VAIN)

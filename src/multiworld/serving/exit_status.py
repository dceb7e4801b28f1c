"""What the end of a member's process says about starting it again. Pure."""

from __future__ import annotations

__all__ = ["IN_VAIN", "starts_again"]

IN_VAIN = 78
"""EX_CONFIG of sysexits.h: its host lacks what the program needs, and would however often it were started there."""


def starts_again(returncode: int | None) -> bool:
    """Whether one that is kept is started again after it ended so."""
    return returncode not in (0, IN_VAIN)

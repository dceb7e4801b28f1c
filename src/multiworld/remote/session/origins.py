"""Where in the user's program an operation was issued: kept for a fraction of a microsecond, shown only if it fails."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Final, TypeAlias

import torch

Origin: TypeAlias = tuple[CodeType, int] | None
"""Code and the index of its last instruction."""

_LIBRARIES: Final = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep,
)
_is_users: dict[CodeType, bool] = {}
UNKNOWN: Final = "an unknown line"


def origin(frame: FrameType | None) -> Origin:
    """Return the innermost place in a program of the user's: neither PyTorch's nor ours."""
    while frame is not None:
        code = frame.f_code
        users = _is_users.get(code)
        if users is None:
            users = _is_users[code] = _is_of_user(code)
        if users:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def here() -> str:
    """Return the line of the user's that the caller was called from."""
    return line_of(origin(sys._getframe(1)))


def line_of(place: Origin) -> str:
    """Return ``file:line in function``."""
    if place is None:
        return UNKNOWN
    code, instruction = place
    line = next((number for first, last, number in code.co_lines() if first <= instruction < last and number), None)
    return f"{code.co_filename}:{line or code.co_firstlineno} in {code.co_name}"


def _is_of_user(code: CodeType) -> bool:
    name = code.co_filename
    return not name.startswith(_LIBRARIES) and not name.startswith("<frozen")

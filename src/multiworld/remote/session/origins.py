"""Where in the user's program an operation was issued: kept for a fraction of a microsecond, shown only if it fails."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Final, TypeAlias

import torch

Origin: TypeAlias = tuple[CodeType, int] | None
"""Code and the index of its last instruction."""

_LIBRARIES: Final = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep,
)
_MAX_KEPT: Final = 100_000
_lock: Final = threading.Lock()  # guards writes to the lines below, which are read without it
# By the id of a code, as its hash is made of all its constants and names each time. These codes are kept: no other one
# gets the id of one of them.
is_users: Final[dict[int, bool]] = {}
_lines: dict[tuple[int, int], str] = {}
_kept: list[CodeType] = []
UNKNOWN: Final = "an unknown line"


def origin(frame: FrameType | None) -> Origin:
    """Return the innermost place in a program of the user's: neither PyTorch's nor ours."""
    while frame is not None:
        code = frame.f_code
        users = is_users.get(id(code))
        if users is None:
            users = look_up(code)
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
    known = _lines.get((id(code), instruction))
    if known is not None:
        return known
    line = next((number for first, last, number in code.co_lines() if first <= instruction < last and number), None)
    text = f"{code.co_filename}:{line or code.co_firstlineno} in {code.co_name}"
    with _lock:
        _keep(code)
        _lines[id(code), instruction] = text
    return text


def look_up(code: CodeType) -> bool:
    """Note whether a code is the user's, and return it."""
    users = _is_of_user(code)
    with _lock:
        _keep(code)
        is_users[id(code)] = users
    return users


def _keep(code: CodeType) -> None:
    """With the lock. A program that compiles code all the time must not grow by it."""
    if len(_kept) >= _MAX_KEPT:
        is_users.clear()
        _lines.clear()
        _kept.clear()
    _kept.append(code)


def _is_of_user(code: CodeType) -> bool:
    name = code.co_filename
    return not name.startswith(_LIBRARIES) and not name.startswith("<frozen")

"""Where an operation was issued: the innermost line that is the user's."""

from __future__ import annotations

import sys
from types import CodeType

import pytest

from multiworld.remote.session import origins
from multiworld.remote.session.origins import UNKNOWN, line_of, origin


def place() -> origins.Origin:
    return origin(sys._getframe(1))


def test_a_line_is_found_again_and_another_line_of_the_function_is_another() -> None:
    first = place()
    second = place()
    line = test_a_line_is_found_again_and_another_line_of_the_function_is_another.__code__.co_firstlineno
    for _ in range(2):
        assert line_of(first) == f"{__file__}:{line + 1} in {sys._getframe().f_code.co_name}"
        assert line_of(second) == f"{__file__}:{line + 2} in {sys._getframe().f_code.co_name}"
    assert line_of(None) == UNKNOWN


def test_codes_that_are_made_again_and_again_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "_MAX_KEPT", 10)
    kept: list[CodeType] = []
    for number in range(50):
        code = compile(f"found = place()  # {number}\n", f"program_{number}.py", "exec")
        names = {"place": place}
        exec(code, names)
        kept.append(code)
        assert line_of(names["found"]) == f"program_{number}.py:1 in <module>"  # type: ignore[arg-type]
        assert len(origins._kept) <= 10
    assert line_of((kept[0], 0)) == "program_0.py:1 in <module>"

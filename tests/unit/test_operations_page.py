"""The messages that the page on operating a job explains are those that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
HOLE = "\0"
VARIES = re.compile(r"…|\b\d+(?:\.\d+)?\b|\bMULTIWORLD_\w+|--[a-z-]+(?: is)?")


def messages() -> list[str]:
    table = PAGE[PAGE.index("| message | |") :]
    rows = table[: table.index("\n\n")].splitlines()[2:]
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row.split(" | ")[0]) if " " in text]


@cache
def texts() -> list[str]:
    """Return each text of the sources, with a hole where a value is put in."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sdr]|%\.\d[fg]", HOLE, node.value))
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values))
    return found


@pytest.mark.parametrize("message", messages())
def test_the_code_has_the_message(message: str) -> None:
    parts = [part.strip() for part in VARIES.split(message) if part.strip()]
    assert any(all(part in text for part in parts) for text in texts()), parts


def test_messages_are_found() -> None:
    assert len(messages()) > 15

"""What reaches for the memory of a remote tensor works or raises: it never crashes the process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from .memory_programs import REFUSED, WORKS

PATIENCE_S = 200.0


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, Any]]:
    """The name of the error and the value of each program; those behind a crash run in another process."""
    left, found = [*REFUSED, *WORKS], dict[str, tuple[str, Any]]()
    while left:
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.memory_programs", *left],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        for line in done.stdout.splitlines():
            name, kind, value = json.loads(line)
            found[name] = kind, value
        if done.returncode:
            crashed = next(name for name in left if name not in found)
            found[crashed] = f"exit status {done.returncode}: {done.stderr[-2000:]}", None
        left = [name for name in left if name not in found]
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_memory_raises(name: str, outcomes: dict[str, tuple[str, Any]]) -> None:
    kind, _ = outcomes[name]
    assert kind.endswith(("Error", "Failed")), kind or "nothing was raised"


@pytest.mark.parametrize("name", WORKS)
def test_what_needs_no_memory_works(name: str, outcomes: dict[str, tuple[str, Any]]) -> None:
    assert outcomes[name] == ("", WORKS[name][1])

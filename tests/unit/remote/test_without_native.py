"""Without ``native/remote.c`` the same tests pass: Python does what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld import native
from multiworld.testing import scaled

HERE = Path(__file__).parent
CHOSEN = ("tensor/test_semantics.py", "node/test_failures.py", "session/test_losing.py")


@pytest.mark.skipif(native.for_remote is None, reason="all other tests run without it")
def test_operations_are_the_same_without_the_native_module() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / each) for each in CHOSEN)],
        env={**os.environ, native.VARIABLE: "0"},
        cwd=HERE.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(100),
    )
    assert process.returncode == 0, process.stdout
    assert " passed" in process.stdout

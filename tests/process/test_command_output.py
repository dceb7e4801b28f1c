"""What a command prints where nobody reads it, and where there is no room for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm_programs

pytestmark = pytest.mark.process

COMMAND = [sys.executable, str(Path(sys.executable).with_name("multiworld"))]
TIMEOUT_S = 60
IMPORT_TORCH = [["run", "--help"], ["doctor"]]
MANIFEST = ["manifest", "k8s", "--name=train", "--image=registry/train:7", "--", "train.py"]


def run(line: list[str], stdout: int, unbuffered: str) -> tuple[int, str]:
    """Return the status, and what it wrote to standard error."""
    popen = warm_programs.Popen if line in IMPORT_TORCH else subprocess.Popen
    with popen(
        [*COMMAND, *line],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        text=True,
    ) as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors


@pytest.mark.parametrize("line", [["--help"], *IMPORT_TORCH, MANIFEST])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line_and_a_reader_that_has_gone_is_none(line: list[str], unbuffered: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        name = "multiworld" if line[0] == "--help" else f"multiworld {line[0]}"
        told = f"{name}: its output cannot be written: No space left on device\n"
        assert run(line, full, unbuffered) == (1, told)
        assert run(line, write_fd, unbuffered) == (0, "")
    finally:
        os.close(full)
        os.close(write_fd)

"""A worker that makes no progress: its stacks are put into its log, and it is replaced."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

HANGING = """
    import sys, threading
    from multiworld.elastic import place, progress

    def hang_for_ever():
        threading.Event().wait()

    progress()
    restarts = place().restarts
    print(f"started again {restarts} times", flush=True)
    if restarts == 0:
        hang_for_ever()
"""


def test_a_worker_that_makes_no_progress_is_replaced_and_its_stacks_are_in_its_log(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HANGING))
    options = ["--progress-timeout=1", "--restart=worker", "--max-restarts=1", "--redirects=3", f"--log-dir={tmp_path}"]
    command = [sys.executable, "-m", "multiworld.run", *options, str(program)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr
    assert "rank 0 failed: made no progress" in done.stderr
    (stacks,) = tmp_path.glob("*/attempt_0/0/stderr.log")
    assert "hang_for_ever" in stacks.read_text()
    (said,) = tmp_path.glob("*/attempt_1/0/stdout.log")
    assert said.read_text() == "started again 1 times\n"

"""A worker that makes no progress: its stacks are put into its log, and it is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import warm_programs

pytestmark = pytest.mark.process

HANGING = """
    import sys, threading
    from multiworld.elastic import place, progress

    def hang_for_ever():
        threading.Event().wait()

    restarts = place().restarts
    print(f"started again {restarts} times", flush=True)
    if restarts == 0:
        progress()  # only here: the second one is not to be measured on a slow machine
        hang_for_ever()
"""

IN_THE_KERNEL = """
    import ctypes, signal

    ctypes.CDLL(None).vfork()  # sleeps in the kernel until the child executes a program, which it never does
    signal.pause()
"""


def test_a_worker_that_makes_no_progress_is_replaced_and_its_stacks_are_in_its_log(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HANGING))
    options = ["--progress-timeout=1", "--restart=worker", "--max-restarts=1", "--redirects=3", f"--log-dir={tmp_path}"]
    command = [sys.executable, "-m", "multiworld.run", *options, str(program)]
    done = warm_programs.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr
    assert "rank 0 failed: made no progress" in done.stderr
    (stacks,) = tmp_path.glob("*/attempt_0/0/stderr.log")
    assert "hang_for_ever" in stacks.read_text()
    (said,) = tmp_path.glob("*/attempt_1/0/stdout.log")
    assert said.read_text() == "started again 1 times\n"


def test_a_job_is_given_up_for_a_worker_that_sleeps_in_the_kernel_as_torchruns_variable_says(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(IN_THE_KERNEL))
    command = [sys.executable, "-m", "multiworld.run", "--max-restarts=3", str(program)]
    done = warm_programs.run(
        command,
        env={**os.environ, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.5"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 137, done.stderr
    assert "rank 0 failed: hangs in the kernel, in uninterruptible sleep: for 0." in done.stderr
    assert "rank 0 hangs in the kernel: nothing is started again" in done.stderr

"""Every example runs by itself, ends with status 0, says what it found, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.testing.deadlines import wait_until

FOLDER = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "collectives.py": "all ranks agree",
    "ddp_on_a_world.py": "as in one process that was never disturbed",
    "die_and_rejoin.py": "PeerDiedError",
    "multi_host.py": "rank 2 of 3",
    "plain_torch_vs_worlds.py": "worlds: rank 2 was killed",
    "process_group_mode.py": "all ranks agree after the loss",
    "rhombus.py": "each answered once, all equal",
    "several_worlds.py": "green and blue go on: [20.0, 20.0]",
}

pytestmark = pytest.mark.process


def test_every_example_is_run_here() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_runs_and_checks_its_result(name: str) -> None:
    process = subprocess.Popen(
        [sys.executable, FOLDER / name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 0, output
    assert EXPECTED[name] in output
    # Its session is its process group too. multiprocessing's resource tracker ends a moment after the last process.
    assert wait_until(lambda: not _group_exists(process.pid), 5)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

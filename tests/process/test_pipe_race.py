"""Two processes that rest and act in the same moment: one of them notices, whatever their processors reorder."""

from __future__ import annotations

import subprocess
import sys

from multiworld.testing import scaled
from tests import warm_programs
from tests.unit.channel.shared_memory.pipes import ENDS


def test_no_bell_is_lost_between_two_processes() -> None:
    process = warm_programs.run(
        [sys.executable, "-m", "tests.process.pipe_race"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(50),
    )
    assert process.returncode == 0, process.stdout
    assert process.stdout.count("rested") == len(ENDS)

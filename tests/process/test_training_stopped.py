"""Under the launcher: a replica that stands still is replaced, and after Ctrl-C all leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from multiworld.world.liveness import DEFAULT_LEASE_S
from tests import warm_programs
from tests.bounds import STOP_S
from tests.warm_workers import Nursery

from .training_programs import train_alone

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("training_stop_program.py")
TOTAL, STOP_AT, NEVER = 80, 5, -1
TIMEOUT_S = 50.0
MORE_STEPS = 100_000  # than anybody waits for

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def with_program(nursery: Nursery) -> None:
    nursery.preload("tests.process.training_programs")


def test_the_others_go_on_without_a_replica_that_stands_still_and_it_is_replaced(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=3", "--max-restarts=3", str(PROGRAM)]
    command = [*run, *map(str, (tmp_path, TOTAL, STOP_AT))]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = {each["rank"]: each for each in (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))}
    assert sorted(said) == [0, 1, 2]
    expected = train_alone(TOTAL)
    for each in said.values():
        final = torch.tensor(each["final"], dtype=torch.float64)
        torch.testing.assert_close(final, expected, rtol=1e-9, atol=1e-11)
    at = dict(said[0]["did"])
    assert sorted(at) == list(range(TOTAL))
    assert at[STOP_AT] - at[STOP_AT - 1] < DEFAULT_LEASE_S + 1.0 + STOP_S
    assert said[1]["pid"] != int((tmp_path / "stopped").read_text())
    assert STOP_AT < said[1]["did"][0][0] < TOTAL


def test_after_ctrl_c_all_leave_between_two_steps_and_say_so(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=2", str(PROGRAM)]
    command = [*run, *map(str, (tmp_path, MORE_STEPS, NEVER))]
    written = tmp_path / "output"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (
        written.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        try:
            give_up_at = time.monotonic() + TIMEOUT_S
            while "step 1/" not in written.read_text():
                assert time.monotonic() < give_up_at, written.read_text()
                assert process.poll() is None, written.read_text()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
    output = written.read_text()
    assert process.returncode == 0, output
    assert re.search(r"stop: ended after step \d+: it got SIGINT", output), output
    assert "Traceback" not in output
    said = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert sorted(each["rank"] for each in said) == [0, 1]
    assert len({len(each["did"]) for each in said}) == 1
    assert said[0]["final"] == said[1]["final"]

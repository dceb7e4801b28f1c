"""The program of the page about training runs as it stands, and survives what the page has its reader do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import warm_programs
from tests.examples.test_docs import ROOT, code_block

PAGE = "docs/training.md"
EXAMPLES = ROOT / "examples"
KILLS = {"step 100:": "1", "step 200:": "0"}

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_leaks")]


def test_the_first_training_survives_a_kill_of_any_rank(tmp_path: Path) -> None:
    code = code_block(PAGE, 'title="train.py"').replace("total=2000", "total=300")
    (tmp_path / "train.py").write_text(code)
    (command,) = code_block(PAGE, "multiworld train --nproc").splitlines()
    line = [sys.executable, "-m", *command.removeprefix("$ ").split()]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = warm_programs.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=env
    )
    assert process.stdout is not None
    lines, pids = [], {}
    try:
        for each in process.stdout:
            lines.append(each)
            begun = re.search(r"rank (\d): pid (\d+)", each)
            if begun:
                pids[begun[1]] = int(begun[2])
            for text, rank in KILLS.items():
                if text in each:
                    os.kill(pids[rank], signal.SIGKILL)
        assert process.wait(20) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    output = "".join(lines)
    assert "rank 1 failed: killed by SIGKILL" in output, output
    assert "rank 0 failed: killed by SIGKILL" in output, output
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+), 60 samples", output)}
    assert list(losses) == [0, 100, 200], output
    assert losses[200] < 0.5 * losses[0]
    assert set(torch.load(tmp_path / "model.pt")) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_the_lines_that_change_in_a_loop_with_fsdp2_are_those_of_the_examples() -> None:
    changes = code_block(PAGE, "-    dist.init_process_group").splitlines()
    assert sum(line.startswith("+") for line in changes) <= 15
    for name, sign in (("train_fsdp2.py", "-"), ("train_from_fsdp2.py", "+")):
        code = iter(line.partition("  #")[0].rstrip() for line in (EXAMPLES / name).read_text().splitlines())
        for line in changes:
            if line[0] in (" ", sign):
                assert line[1:] in code, f"{name} has no line {line[1:]!r} after the one before it"

"""The programs of the page on remote tensors run as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.examples.test_docs import code_block

pytestmark = pytest.mark.process

PAGE = "docs/remote.md"


def written(folder: Path, name: str, page: str = PAGE) -> Path:
    """Write a program of a page to a file."""
    path = folder / name
    path.write_text(code_block(page, f'title="{name}"'))
    return path


def output_of(path: Path, *, said: str = "") -> str:
    """Run a program of the page to its end, with one thread, as two nodes share two cores.

    ``said``: an expression for each line of its standard error.
    """
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=50, env=variables)
    assert ran.returncode == 0, ran.stderr
    assert all(said and re.match(said, line) for line in ran.stderr.splitlines()), ran.stderr
    return ran.stdout


def test_a_model_trains_on_a_node_and_one_line_waits(tmp_path: Path) -> None:
    printed = output_of(written(tmp_path, "remote_session.py"))
    loss, syncs = re.fullmatch(r"loss ([0-9.]+), after (\d+) wait\n", printed).groups()  # type: ignore[union-attr]
    assert float(loss) < 1.0
    assert syncs == "1"


def test_a_student_learns_on_the_device_of_a_node(tmp_path: Path) -> None:
    device, loss = output_of(written(tmp_path, "remote_device.py")).split()
    assert device == "remote:1"
    assert 0 < float(loss) < 10


def test_a_model_is_on_the_gpu_of_a_node(tmp_path: Path) -> None:
    """Without a GPU, places are known all the same, and the line that waits fails."""
    ran = subprocess.run(
        [sys.executable, written(tmp_path, "remote_gpu.py")], capture_output=True, text=True, timeout=50
    )
    devices, place, *losses = ran.stdout.splitlines()
    assert place == "1 0", ran.stderr
    if torch.cuda.is_available():
        assert (ran.returncode, len(losses)) == (0, 1), ran.stderr
        return
    assert (ran.returncode, devices, losses) == (1, "('cpu',)", [])
    assert "the node has no device cuda:0; its devices: cpu" in ran.stderr


def test_a_compiled_model_trains(tmp_path: Path) -> None:
    loss, num_traced = output_of(written(tmp_path, "remote_compile.py")).split()
    assert 0 < float(loss) < 2
    assert num_traced == "1"


def test_a_captured_step_trains(tmp_path: Path) -> None:
    path = written(tmp_path, "remote_capture.py")
    losses, refused = output_of(path).splitlines()
    first, last = re.match(r"([0-9.]+) -> ([0-9.]+) <Step node=1 \d+ operations>", losses).groups()  # type: ignore[union-attr]
    assert float(last) < float(first) / 2
    (line,) = (number for number, text in enumerate(path.read_text().splitlines(), 1) if "x.sum().item()" in text)
    assert refused.startswith(f"remote.capture: item at {path}:{line} in <module>: it waits for a value")


def test_a_node_computes_while_batches_come(tmp_path: Path) -> None:
    assert output_of(written(tmp_path, "remote_streams.py")).splitlines()[1:] == ["True"]


def test_a_training_survives_its_node(tmp_path: Path) -> None:
    learned = r"its process has ended|the connection was closed by the other side"  # whichever is seen first
    printed = output_of(written(tmp_path, "remote_recovery.py"), said=rf"node 1 is lost: it died: ({learned})\.")
    assert re.fullmatch(r"loss \d\.\d{3}, made anew 1 time\n", printed)


def test_what_needs_a_failed_operation_says_where_that_was_issued(tmp_path: Path) -> None:
    path = written(tmp_path, "remote_errors.py")
    printed = output_of(path)
    kept, failed, *_ = printed.splitlines()
    assert kept == "tensor([1., 1., 1., 1., 1., 1., 1., 1., 1., 1.])"
    assert "aten.index.Tensor failed on node 1: IndexError" in failed
    (line,) = (number for number, text in enumerate(path.read_text().splitlines(), 1) if "row = table" in text)
    assert f"{path}:{line}" in printed


def test_a_node_calls_what_it_declared_and_keeps_what_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "remote_call.py")
    monkeypatch.chdir(tmp_path)
    shape, refused = output_of(path).splitlines()
    assert shape == "torch.Size([64, 20]) 1 128"
    assert "node 1 does not call 'os:system'" in refused


def test_a_profile_names_the_line_that_waits(tmp_path: Path) -> None:
    path = written(tmp_path, "remote_profile.py")
    head, columns, waits, issues = output_of(path).splitlines()
    assert re.fullmatch(r"waited .*, 20 times", head)
    assert columns.split()[:6] == ["WAITED", "LONGEST", "TIMES", "RECEIVED", "ISSUED", "SENT"]
    lines = path.read_text().splitlines()
    for row, code in ((waits, "if x.mean()"), (issues, "torch.tanh")):
        (number,) = (number for number, text in enumerate(lines, 1) if code in text)
        assert f"{path}:{number} in <module>" in row
    assert waits.endswith(" item")


def test_nodes_reduce_and_train_together(tmp_path: Path) -> None:
    printed = output_of(written(tmp_path, "remote_between.py"))
    assert printed == "tensor([3., 3., 3.]) tensor([3., 3., 3.])\nTrue\n"


def test_the_lines_of_the_readme(tmp_path: Path) -> None:
    printed = output_of(written(tmp_path, "square.py", "README.md"))
    assert len(re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", printed)) == 9

"""A model on another device than its worlds is trained as one on the CPU, through a kill and a replacement.

PyTorch's lazy device stands for a GPU: it refuses what is on the CPU as a GPU does, and every build has it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from multiworld.testing import scaled

from .. import warm_programs

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(180))]

PROGRAM = Path(__file__).with_name("training_device_program.py")


def train(folder: Path, kind: str, device: str, num_processes: int, backend: str = "auto") -> list[float]:
    """Return the last loss, as each process knows it."""
    folder.mkdir()
    run = [sys.executable, "-m", "multiworld.run", f"--nproc-per-node={num_processes}", "--max-restarts=3"]
    command = [*run, "--restart=worker", str(PROGRAM), str(folder), kind, device, backend]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=scaled(80), check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (folder / "killed").exists()
    return [float(path.read_text()) for path in folder.glob("*.loss")]


@pytest.mark.parametrize(("kind", "num_processes"), [("replicas", 2), ("exact", 2), ("pipelines", 4)])
def test_a_training_on_another_device_computes_what_one_on_the_cpu_computes(
    tmp_path: Path, kind: str, num_processes: int
) -> None:
    there = train(tmp_path / "lazy", kind, "lazy", num_processes)
    assert there == [pytest.approx(train(tmp_path / "cpu", kind, "cpu", num_processes)[0], rel=1e-5)] * num_processes


def test_replicas_on_another_device_exchange_outer_steps(tmp_path: Path) -> None:
    """Who trains which samples after the kill depends on when it comes back, so there is no loss to compare with."""
    assert len(train(tmp_path / "lazy", "diloco", "lazy", 2)) == 2

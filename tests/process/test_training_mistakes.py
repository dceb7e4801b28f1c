"""A program that fails in all workers right after its start: the launcher ends the training, and does not try on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from multiworld.testing import scaled
from tests import warm_programs

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(60))]

BEGIN = "from multiworld import training\n"


@pytest.mark.parametrize(
    ("program", "error", "tries"),
    [
        (BEGIN + "model = Modle()\n", "NameError: name 'Modle' is not defined", 1),
        (BEGIN + "training.Checkpoint(None)\n", "TypeError: dir=None: give the path", 1),
        (BEGIN + "def f(:\n", "SyntaxError: ", 1),
        ("raise SystemExit(3)\n", "exit code 3", 2),
        (BEGIN + "training.join('a')\nmodel = Modle()\n", "NameError: name 'Modle' is not defined", 3),
    ],
    ids=["name", "checkpoint", "syntax", "exit", "joined"],
)
def test_a_mistake_of_the_program_ends_a_training(tmp_path: Path, program: str, error: str, tries: int) -> None:
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "multiworld", "train", "--nproc-per-node=2", "--no-page", "train.py"]
    ended = warm_programs.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(50), check=False)

    assert ended.returncode in (1, 3)
    assert f"failed first: {error}" in ended.stderr
    assert ended.stderr.count(f" failed: {error}") in (2 * tries, 2 * tries + 1)  # a third may be quicker than the end
    assert "nothing is started again, as " in ended.stderr

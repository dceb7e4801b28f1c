"""Which checks and tests ``make`` runs, in which order, and when it fails: with programs that only say their names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = os.nice(0)
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ruff", "mypy", "lint-imports", "pytest", "python")
SAYS_ITS_NAME = """#!/bin/sh
cd {folder}
name=$(basename $0)
[ $name = mypy ] && [ -p meeting ] && read there < meeting
[ $name = pytest ] && mkdir began 2> /dev/null && echo there > meeting
echo "<$name at $(nice)>"
[ $name != "$(cat failing)" ]
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the programs lie, of which ``pytest`` and ``mypy`` each wait for the other to begin."""
    os.mkfifo(tmp_path / "meeting")
    (tmp_path / "failing").touch()
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        program = tmp_path / "bin" / name
        program.write_text(SAYS_ITS_NAME.format(folder=tmp_path))
        program.chmod(0o755)
    (tmp_path / "installed").touch()  # later than all sources
    return tmp_path


def make(folder: Path, *targets: str) -> tuple[int, list[str]]:
    """Return its exit status and which programs said their names, each as ``NAME at NICENESS``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", *targets, f"VENV={folder}", f"STAMP={folder / 'installed'}"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=30)
    said = [line[1:-1] for line in done.stdout.splitlines() if line.startswith("<")]
    return done.returncode, said


@pytest.mark.parametrize("options", [(), ("-j4",)])
def test_types_are_checked_beside_the_unit_tests_and_told_after_them(folder: Path, options: Sequence[str]) -> None:
    status, said = make(folder, *options, "test")
    assert status == 0
    assert said[:4] == [f"ruff at {HERE}", f"ruff at {HERE}", f"pytest at {HERE}", f"pytest at {HERE}"]
    assert sorted(said[4:6]) == ["lint-imports at 19", "mypy at 19"]
    assert said[6:] == [f"python at {HERE}"]


@pytest.mark.parametrize(
    ("failing", "ran"), [("ruff", 1), ("mypy", 6), ("lint-imports", 6), ("pytest", 5), ("python", 7)]
)
def test_the_whole_run_fails_with_each_of_its_steps(folder: Path, failing: str, ran: int) -> None:
    (folder / "failing").write_text(failing)
    status, said = make(folder, "test")
    assert status != 0
    assert len(said) == ran
    assert {f"{failing} at {HERE}", f"{failing} at 19"} & set(said)


@pytest.mark.parametrize("failing", ["", "ruff", "mypy", "lint-imports"])
def test_the_checks_alone_run_no_tests(folder: Path, failing: str) -> None:
    (folder / "meeting").unlink()
    (folder / "failing").write_text(failing)
    status, said = make(folder, "check")
    assert (status == 0) == (failing == "")
    expected = ["ruff"] if failing == "ruff" else ["ruff", "ruff", "lint-imports", "mypy"]
    assert sorted(said) == sorted(f"{name} at {HERE}" for name in expected)

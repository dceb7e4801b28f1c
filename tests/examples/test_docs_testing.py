"""The programs on the page about testing run as they stand; only their port is another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from multiworld.testing import WorkerGroup
from multiworld.testing.channel_conformance import CHECKS
from tests import warm_programs
from tests.examples.test_docs import ROOT, code_blocks, program

pytestmark = pytest.mark.usefixtures("no_leaks")

PAGE = "docs/testing.md"


def test_a_worker_and_its_test(tmp_path: Path) -> None:
    path = program(tmp_path, PAGE, "break_it.py")
    write(tmp_path, "adder.py")
    assert_prints(path, "noticed in time")


def test_members_without_a_program(tmp_path: Path) -> None:
    assert_prints(write(tmp_path, "crew.py"), "the world of the others works")


def write(tmp_path: Path, title: str) -> Path:
    (code,) = (code for name, code in code_blocks(ROOT / PAGE) if name == title)
    path = tmp_path / title
    path.write_text(code)
    return path


def assert_prints(path: Path, text: str) -> None:
    with WorkerGroup() as workers:
        worker = workers.start(path, name=path.name)
        assert worker.wait(45) == 0
        assert text in worker.stdout


def test_the_conformance_test_of_a_channel_of_ones_own(tmp_path: Path) -> None:
    """It is collected as it stands; tests/process/test_channel_conformance.py makes its checks on the same channel."""
    for title in ("unix_channel.py", "test_unix_channel.py"):
        (code,) = (code for name, code in code_blocks(ROOT / "docs/channels.md") if name == title)
        (tmp_path / title).write_text(code)
    collect = ["-q", "-p", "no:cacheprovider", "--collect-only"]
    command = [sys.executable, "-m", "pytest", *collect, "test_unix_channel.py"]
    ran = warm_programs.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("test_unix_channel.py::TestUnixChannel::test_") == len(CHECKS)

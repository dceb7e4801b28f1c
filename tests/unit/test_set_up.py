"""What setting up an environment says, and which versions it takes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tools import set_up


def test_a_step_says_what_it_does_and_how_long_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = set_up.Steps(tmp_path / "log").run("counting", [sys.executable, "-c", "print(3)"])
    assert printed == "3\n"
    assert capsys.readouterr().err == "  counting ...\n  counting: done in 0 s\n"


def test_a_step_that_fails_shows_its_end_and_where_all_of_it_is(tmp_path: Path) -> None:
    program = "import sys; [print(f'<{each}>') for each in range(99)]; sys.exit(3)"
    with pytest.raises(set_up.SetUpError, match="counting: failed with status 3") as failed:
        set_up.Steps(tmp_path / "log").run("counting", [sys.executable, "-c", program])
    assert "<98>" in str(failed.value)
    assert "<9>" not in str(failed.value)
    assert str(tmp_path / "log") in str(failed.value)
    assert "<0>" in (tmp_path / "log").read_text()


def test_a_step_is_compiled_for_although_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIWORLD_NATIVE", "core")
    program = "import os; print(os.environ.get('MULTIWORLD_NATIVE'))"
    steps = set_up.Steps(tmp_path / "log")
    assert steps.run("one", [sys.executable, "-c", program]) == "None\n"
    assert steps.run("two", [sys.executable, "-c", program], MULTIWORLD_NATIVE="0") == "0\n"


def test_another_torch_is_pinned_without_what_the_pinned_one_brings(tmp_path: Path) -> None:
    assert set_up.constraints(tmp_path, None) == set_up.CONSTRAINTS
    lines = set_up.constraints(tmp_path, "2.14.1").read_text().splitlines()
    assert "torch==2.14.1" in lines
    assert any(line.startswith("pytest==") for line in lines)
    assert not [line for line in lines if line.startswith(("torch==2.13", "triton", "nvidia-", "cuda-"))]


def test_the_names_of_an_extra_are_found_in_what_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", set_up.REQUIREMENTS_OF, "mpi"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "mpi4py>=4.0\n"


def test_an_extra_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    with pytest.raises(set_up.SetUpError, match="no extra 'nothing'"):
        set_up.add(tmp_path, "nothing")


def test_the_sources_have_bytecode_although_processes_may_write_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/one.py").write_text("ONE = 1\n")
    set_up.Steps(tmp_path / "log").run("writing bytecode", set_up.bytecode(Path(sys.executable)))
    assert Path(importlib.util.cache_from_source(str(tmp_path / "src/one.py"))).is_file()

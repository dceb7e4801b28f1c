"""Which modules are loaded compiled: all that were compiled from the sources that lie here, or none."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.native import compiled

SAY = "import multiworld.native as n, multiworld.wire.connection.frames as f, multiworld.serving.flow.edge as e"
SAY += "\nprint(n.not_compiled)"
SAY += "\nfor m in f, e: print(m.__file__.rsplit('.', 1)[1])"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources of the modules, elsewhere."""
    for module in compiled.MODULES:
        source = compiled.source_of(module)
        target = tmp_path / source.relative_to(compiled.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    return tmp_path


def say(value: str | None) -> list[str]:
    environment = {name: text for name, text in os.environ.items() if name != compiled.VARIABLE}
    if value is not None:
        environment[compiled.VARIABLE] = value
    ran = subprocess.run([sys.executable, "-c", SAY], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_all_modules_are_there_once_and_in_order() -> None:
    assert list(compiled.MODULES) == sorted(set(compiled.MODULES))
    assert all(compiled.source_of(module).is_file() for module in compiled.MODULES)


@pytest.mark.parametrize("module", compiled.MODULES)
def test_nothing_is_awaited_while_an_exception_is_handled(module: str) -> None:
    """Compiled, what is handled may be another task's exception afterwards."""
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
    for node in ast.walk(ast.parse(compiled.source_of(module).read_text())):
        if isinstance(node, ast.Try):
            handling = [*node.handlers, *node.finalbody]
            assert not [inner.lineno for part in handling for inner in ast.walk(part) if isinstance(inner, waits)]


def test_of_other_sources_the_library_has_another_name(copied: Path) -> None:
    before = compiled.group_name()
    assert compiled.group_name() == before
    with (copied / "wire" / "connection" / "frames.py").open("a") as file:
        file.write("\n")
    assert compiled.group_name() != before


def test_what_the_c_is_mended_with_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled.group_name()
    (tmp_path / "generated.py").write_text("")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled.group_name() != before


def test_what_lies_beside_them_counts(copied: Path) -> None:
    before = compiled.group_name()
    (copied / "wire" / "another.py").write_text("LIMIT: float = 1.0\n")
    assert compiled.group_name() != before


def test_what_was_compiled_of_other_sources_is_not_used(copied: Path) -> None:
    with (copied / "wire" / "connection" / "frames.py").open("a") as file:
        file.write("\n")
    assert "install the package again" in compiled.why_not()


def test_without_the_sources_what_was_compiled_is_not_used(copied: Path) -> None:
    (copied / "wire" / "connection" / "frames.py").unlink()
    assert "install the package again" in compiled.why_not()
    assert compiled.SourceFinder().find_spec("multiworld.wire.connection.frames", None) is None, "others may find it"


def test_a_library_that_belongs_to_another_place_is_not_used(copied: Path) -> None:
    assert "install the package again" in compiled.why_not(), "there is nothing compiled beside these sources"


@pytest.mark.parametrize("value", ["0", "core"])
def test_the_environment_can_have_the_sources_used(value: str) -> None:
    assert say(value) == [f"{compiled.VARIABLE}={value} in the environment", "py", "py"]


def test_all_are_compiled_or_none() -> None:
    reason, *suffixes = say(None)
    assert suffixes == (["py", "py"] if reason else ["so", "so"])


def test_the_finder_finds_sources_of_those_modules_alone() -> None:
    finder = compiled.SourceFinder()
    spec = finder.find_spec("multiworld.wire.connection.frames", None)
    assert spec is not None
    assert spec.origin == str(compiled.source_of("wire.connection.frames"))
    for name in ("multiworld", "multiworld.wire", "multiworld.wire.connection.waiter", "other.wire.frames"):
        assert finder.find_spec(name, None) is None

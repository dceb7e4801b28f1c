"""The native core is loaded where it was built for this version, and there is a reason where it is not."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from multiworld import native

WITH_CORE = pytest.mark.skipif(native.core is None, reason=native.why_not)


def find(monkeypatch: pytest.MonkeyPatch, origin: Path | None) -> None:
    """Let the library be found there, or not at all."""
    spec = None if origin is None else ModuleSpec("core", None, origin=str(origin))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)


@WITH_CORE
@pytest.mark.parametrize("value", [None, "", "1"])
def test_the_core_is_used_unless_the_environment_forbids_it(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(native.VARIABLE, value)
    core, why_not = native._load()
    assert core is not None
    assert core.multiworld_version() == native.VERSION
    assert why_not == ""


def test_the_environment_can_forbid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_NATIVE", "0")
    assert native._load() == (None, "MULTIWORLD_NATIVE=0 in the environment")


@WITH_CORE
def test_a_core_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    core, why_not = native._load()
    assert core is None
    assert why_not.endswith(f"is of version {native.VERSION - 1}, not {native.VERSION}: install the package again")


def test_without_a_core_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    find(monkeypatch, None)
    core, why_not = native._load()
    assert core is None
    assert "it was not built" in why_not


def test_what_is_no_library_is_no_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    (tmp_path / "core.so").write_text("of another machine")
    find(monkeypatch, tmp_path / "core.so")
    core, why_not = native._load()
    assert core is None
    assert why_not.startswith("it does not load: ")


WITH_REMOTE = pytest.mark.skipif(native.for_remote is None, reason=native.why_not_for_remote)


@WITH_REMOTE
def test_the_module_for_remote_tensors_is_used_unless_the_environment_forbids_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(native.VARIABLE, "core")
    assert native._load_for_remote() == (native.for_remote, "")
    monkeypatch.setenv(native.VARIABLE, "0")
    assert native._load_for_remote() == (None, "MULTIWORLD_NATIVE=0 in the environment")


@WITH_REMOTE
def test_a_module_for_remote_tensors_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setattr(native, "VERSION_FOR_REMOTE", native.VERSION_FOR_REMOTE + 1)
    module, why_not = native._load_for_remote()
    assert module is None
    assert why_not.endswith("install the package again")


def test_without_the_module_for_remote_tensors_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)

    def find_none(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", find_none)
    module, why_not = native._load_for_remote()
    assert module is None
    assert "Python's headers" in why_not

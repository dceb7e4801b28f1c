"""What is missing is named, and installed from a clone: ``multiworld`` on PyPI is another package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from multiworld.channel.mpi import job as mpi_job
from multiworld.cli import demo, serve
from multiworld.extras import install_extra, missing_modules
from multiworld.serving.config import ConfigError
from multiworld.serving.config.document import Document
from multiworld.serving.errors import DeploymentError
from multiworld.serving.tracing.exporter import SDK, check_installed
from multiworld.training.errors import SetupError
from multiworld.training.planning import installed

ROOT = Path(__file__).parents[2]


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the modules be as if they were not installed."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def test_serve_names_what_it_needs_before_it_loads_the_pipeline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(monkeypatch, "orjson", "uvicorn")
    assert serve.main(["no_such_file.py:pipeline"]) == 2
    assert capsys.readouterr().err == f"multiworld serve needs orjson, uvicorn: {install_extra('serving')}\n"


def test_demo_names_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hide(monkeypatch, "sklearn")
    assert demo.main([]) == 2
    assert capsys.readouterr().err == f"multiworld demo needs sklearn: {install_extra('demo')}\n"


def test_yaml_mpi_and_traces_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "yaml", SDK)
    with pytest.raises(ConfigError, match=re.escape(install_extra("serving"))):
        Document.parse("pipeline.yaml", "stages: []")
    with pytest.raises(DeploymentError, match=re.escape(install_extra("tracing"))):
        check_installed()
    assert install_extra("mpi") in mpi_job.NOT_INSTALLED


def test_plans_of_pipelines_name_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    installed.check_installed()
    hide(monkeypatch, "scipy")
    with pytest.raises(SetupError, match=re.escape(f"need scipy: {install_extra('training')}")):
        installed.check_installed()


def test_missing_modules_are_named_in_order() -> None:
    assert missing_modules(["json", "no_such_module_b", "no_such_module_a"]) == ["no_such_module_b", "no_such_module_a"]


def test_nothing_advises_to_install_the_package_of_another_project() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    wrong = re.compile(r"pip install\b[^\n`]*[ '\"]multiworld\b")
    assert {path.name: found for path in texts if (found := wrong.findall(path.read_text()))} == {}

"""The ten minutes of the page about serving: its commands run in their order, and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from multiworld.testing import WorkerGroup, wait_until
from tests import warm_programs
from tests.examples.test_docs import ROOT, code_block, code_blocks

pytestmark = [pytest.mark.process, pytest.mark.timeout(120), pytest.mark.usefixtures("no_leaks")]

PAGE = ROOT / "docs/serving.md"
COMMAND_S = 45.0
SAVE_BAD = 'import torch; torch.save({"factor": torch.tensor(float("nan"))}, "bad.pt")'


def test_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    (app,) = (code for _, code in code_blocks(PAGE) if 'name="calc"' in code)
    (tmp_path / "app.py").write_text(app)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    shown = dict(commands())
    with WorkerGroup() as workers:
        arguments = ("serve", str(tmp_path / "app.py:pipeline"), "--port", "0")
        served = workers.start(ROOT / "src/multiworld/__main__.py", *arguments, name="serve", env=environment)
        assert wait_until(lambda: "/page)\n" in served.stderr or served.returncode is not None, COMMAND_S), (
            served.describe()
        )
        (answers,) = re.findall(r"^.* answers at .*$", served.stderr, re.MULTILINE)
        assert words(answers) == words(shown["multiworld serve app.py:pipeline"])
        (port,) = re.findall(r"127\.0\.0\.1:(\d+)", answers)
        printed: dict[str, str] = {}

        def has_settled() -> bool:
            """Replicas tell a moment later what they have done."""
            return words(execute("multiworld serve status")) == words(shown["multiworld serve status"])

        def execute(command: str, *, status: int = 0) -> str:
            line = command.replace("localhost:8000", f"127.0.0.1:{port}")
            printed[command] = run(line, tmp_path, environment, status=status)
            return printed[command]

        for command, expected in shown.items():
            if command.startswith("kill"):
                (pid,) = re.findall(r"^scale-1 .*? (\d+) ", printed["multiworld serve status"], re.MULTILINE)
                execute(f"kill -9 {pid}")
            elif command == "multiworld serve stop":
                assert re.search(r"\bscale-3\b", execute("multiworld serve events")), "it took the place of scale-1"
                execute(next(command for command in shown if command.startswith("curl")))
                execute(f"python -c '{SAVE_BAD}'")
                refused = execute("multiworld serve update scale bad.pt", status=1)
                assert plain(code_block("docs/serving.md", "was rolled back: ")) in plain(refused)
                execute(command)
            elif command.startswith(("curl", "python -c", "multiworld serve")) and "app.py" not in command:
                execute(command)
            if expected and command in printed:
                if command == "multiworld serve status":
                    wait_until(has_settled, COMMAND_S)
                assert words(printed[command]) == words(expected), command
        assert served.wait(COMMAND_S) == 0
        assert "rejoin" not in served.stderr, "advice for programs is nothing to an operator"


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(code_block("docs/serving.md", 'name="calc"'))
    (tmp_path / "deploy.py").write_text(code_block("docs/serving.md", "from app import pipeline"))
    (tmp_path / "generate.py").write_text(code_block("docs/serving.md", "Generator(served)"))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    programs = [
        warm_programs.Popen([sys.executable, name], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
        for name in ("deploy.py", "generate.py")
    ]
    try:
        deployed, generated = (each.communicate(timeout=COMMAND_S)[0].decode() for each in programs)
    finally:
        for each in programs:
            each.kill()
            each.communicate()
    assert [each.returncode for each in programs] == [0, 0]
    answer, *replicas = deployed.splitlines()
    assert answer == "tensor([4., 6., 8.])"
    assert sorted(line.split()[0] for line in replicas) == ["add-1", "scale-1", "scale-2", "scale-3"]
    assert {line.split()[2] for line in replicas} == {"ready"}
    assert len(generated) == 100


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command of the page's blocks with the text that stands below it, which may be empty."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            yield re.sub(r" {2,}#.*", "", command), output


def words(text: str) -> list[list[str]]:
    """Return what must be equal: numbers, the host's name and white space may be others.

    So may the order of replicas of one stage: the only request went to one of them.
    """
    text = re.sub(rf"\b({re.escape(os.uname().nodename)}|vm)\b", "HOST", text)
    lines = [line.split() for line in re.sub(r"\d+(\.\d+)?", "N", text).splitlines() if line.strip()]
    return [line for _, alike in groupby(lines, key=lambda line: line[0]) for line in sorted(alike)]


def plain(text: str) -> str:
    """Return a text without its line breaks and numbers."""
    return re.sub(r"\d+(\.\d+)?", "N", " ".join(text.split()))


def run(command: str, folder: Path, environment: dict[str, str], *, status: int = 0) -> str:
    line = re.sub(r"^multiworld ", f"{sys.executable} -m multiworld ", command)
    line = re.sub(r"^python ", f"{sys.executable} ", line)
    ran = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert ran.returncode == status, f"{command}: {ran.stdout}"
    return ran.stdout

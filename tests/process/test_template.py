"""A process that forks others: nothing is left when it, or the one that started it, has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from multiworld.process.spawn.template import Template, TemplateLostError
from multiworld.testing import wait_until
from multiworld.testing.deadlines import scaled

pytestmark = pytest.mark.process

PARENT = """\
import os, sys
from multiworld.process.spawn.template import Template
template = Template("tests.process.template_programs:write_and_wait", os.environ)
template.start([sys.argv[1]])
sys.stdin.read(1)
"""


@pytest.fixture
def template() -> Iterator[Template]:
    template = Template("tests.process.template_programs:write_and_wait", os.environ)
    yield template
    template.close()


def pids_in(path: Path) -> tuple[int, int]:
    assert wait_until(lambda: path.exists() and " " in path.read_text(), 30)
    forked, parent = path.read_text().split()
    return int(forked), int(parent)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_forked_processes_are_killed_and_a_lost_template_is_replaced(template: Template, tmp_path: Path) -> None:
    first = template.start([str(tmp_path / "first")])
    pid, parent = pids_in(tmp_path / "first")
    assert pid == first.pid
    assert not first.wait(0)
    first.kill()
    assert first.wait(scaled(10))
    first.close()
    os.kill(parent, signal.SIGKILL)
    second = template.start([str(tmp_path / "second")])
    other, parent_of_other = pids_in(tmp_path / "second")
    assert (other, parent_of_other != parent) == (second.pid, True)
    template.close()  # it kills what does not end by itself
    assert second.wait(scaled(10))
    second.close()


def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "pids")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as parent:
        forked, template = pids_in(tmp_path / "pids")
        os.kill(forked, signal.SIGSTOP)  # it could not end by itself
        parent.kill()
    assert wait_until(lambda: is_gone(forked) and is_gone(template), 30)


def test_a_program_that_can_not_be_imported_is_an_error() -> None:
    template = Template("tests.process.no_such_module:main", os.environ)
    with pytest.raises(TemplateLostError, match="ended with status 1: its standard error says why"):
        template.start([])

"""What is left when the processes around a worker are killed: nothing of the worker's, and the job if it can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multiworld.testing import wait_until
from multiworld.world.processes.procfs import process_sessions
from tests import warm_programs

WAIT_S = 10.0
WORKER = "sleep 600 & echo same $!; timeout 600 sleep 600 & echo other $!; setsid sleep 600 & echo daemon $!; wait"
DIES_ONCE = """
import os, pathlib
once = pathlib.Path(__file__).with_name("once")
if not once.exists():
    once.touch()
    os.kill(os.getpid(), 9)
"""


@contextmanager
def job(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "multiworld.run", "--no-page", *arguments]
    with warm_programs.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_pids(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdout is not None
    pids: dict[str, int] = {}
    while len(pids) < 3:
        line = process.stdout.readline()
        assert line, "it ended"
        *_, name, pid = line.split() if len(line.split()) > 1 else ("", "", "")
        if name in ("same", "other", "daemon"):
            pids[name] = int(pid)
    return pids


def fork_server_of(agent: int) -> int:
    """The first process that the agent has started."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return min(
        map(int, children), key=lambda pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    )


def test_children_of_workers_end_with_agent_and_fork_server_which_are_killed_at_once() -> None:
    with job("--no-python", "bash", "-c", WORKER) as agent:
        pids = read_pids(agent)
        try:
            assert wait_until(lambda: process_sessions()[pids["daemon"]] == pids["daemon"], WAIT_S)
            for pid in (agent.pid, fork_server_of(agent.pid)):
                os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: not {pids["same"], pids["other"]} & process_sessions().keys(), WAIT_S)
            assert pids["daemon"] in process_sessions()  # it has a session of its own: it means to go on
        finally:
            os.kill(pids["daemon"], signal.SIGKILL)


def test_a_fork_server_that_is_killed_while_it_imports_is_followed_by_one_that_starts_the_worker(
    tmp_path: Path,
) -> None:
    (tmp_path / "dies_once.py").write_text(DIES_ONCE)
    (tmp_path / "program.py").write_text("import sys; print('dies_once' in sys.modules)")
    command = [sys.executable, "-m", "multiworld.run", "--no-page", "--preload", "dies_once", "program.py"]
    done = warm_programs.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=50)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "the process that starts workers is lost (the fork server was killed by SIGKILL)" in done.stderr

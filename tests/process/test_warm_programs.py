"""A program that the nursery forks finds what it would find in an interpreter of its own, and ends as there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing import Network, hosts_available
from tests import warm_programs
from tests.warm_workers import Nursery

pytestmark = pytest.mark.usefixtures("no_leaks")

FACTS = """
import json, multiprocessing, os, signal, sys, threading

print("to standard error", file=sys.stderr)
print(json.dumps({
    "name": __name__,
    "file": globals().get("__file__"),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "main of multiprocessing": sys.modules["__mp_main__"] is sys.modules["__main__"],
    "argv": sys.argv,
    "path": sys.path,
    "cwd": os.getcwd(),
    "env": dict(os.environ),
    "stdin": sys.stdin.read(),
    "session": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpgid(os.getppid()),
    "signals": {int(each): str(signal.getsignal(each)).partition(" at ")[0] for each in signal.valid_signals()},
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": threading.active_count(),
    "descriptors": [(fd, os.readlink(at)[:5]) for fd in range(99) if os.path.exists(at := f"/proc/self/fd/{fd}")],
    "output": [getattr(sys.stdout, name) for name in ("line_buffering", "write_through", "encoding", "errors")],
    "errors": [getattr(sys.stderr, name) for name in ("line_buffering", "write_through", "encoding", "errors")],
    "parent": os.getppid(),
}))
sys.exit(7)
"""
UNTIL_A_SIGNAL = """
import sys, time
print(f"here {'torch' in sys.modules}", flush=True)
time.sleep(60)
"""
NETWORK = """
import os, subprocess, sys

addresses = subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True, check=True).stdout
print("torch" in sys.modules, os.readlink("/proc/self/ns/net"), addresses.replace("/", " "))
"""
NO_HOSTS = hosts_available()


def facts(popen: Callable[..., Any], command: list[str], **how: Any) -> tuple[int, dict[str, Any], str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with popen([sys.executable, *command], **pipes, **how) as process:
        output, errors = process.communicate("asked", timeout=60)
    return process.returncode, json.loads(output), errors


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("command", [["facts.py", "--of", "this"], ["-m", "facts", "--of", "this"], ["-c", FACTS, "x"]])
def test_a_forked_program_finds_what_a_new_interpreter_does(
    tmp_path: Path, command: list[str], session: bool, unbuffered: str
) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "OF_THIS": "one"}
    with open("/dev/zero") as file:
        how = {"cwd": tmp_path, "env": environment, "start_new_session": session, "pass_fds": (file.fileno(),)}
        forked, started = (facts(popen, command, **how) for popen in (warm_programs.Popen, subprocess.Popen))
    assert forked[1] == started[1]
    assert (forked[0], forked[2]) == (started[0], started[2]) == (7, "to standard error\n")
    assert forked[1]["parent"] == os.getpid()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_forked_program_is_ended_by_signals(tmp_path: Path, signum: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(UNTIL_A_SIGNAL)
    with warm_programs.Popen(
        [sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here True\n"
        process.send_signal(signum)
        assert process.wait(20) == -signum
        _, errors = process.communicate()
    assert ("KeyboardInterrupt" in errors) == (signum == signal.SIGINT)


@pytest.mark.skipif(NO_HOSTS is not None, reason=NO_HOSTS or "")
def test_a_program_on_a_simulated_host_is_forked_and_finds_its_network(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(NETWORK)
    with Network(2) as network:
        for host in network.hosts:
            command = ["ip", "netns", "exec", host.netns, sys.executable, str(tmp_path / "program.py")]
            found = [
                run(command, capture_output=True, text=True, check=True) for run in (warm_programs.run, subprocess.run)
            ]
            forked, started = (each.stdout.split() for each in found)
            assert (forked[0], started[0]) == ("True", "False")
            assert forked[1:] == started[1:]
            assert host.address in forked
        with host.popen(sys.executable, str(tmp_path / "program.py"), stdout=subprocess.PIPE) as process:
            assert process.communicate()[0].split() == [part.encode() for part in forked]


def test_variables_that_are_read_at_the_start_get_a_new_interpreter(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print('torch' in sys.modules)")
    command = [sys.executable, str(tmp_path / "program.py")]
    assert warm_programs.run(command, capture_output=True, text=True).stdout == "True\n"
    cold = warm_programs.run(command, env={**os.environ, "OMP_NUM_THREADS": "3"}, capture_output=True, text=True)
    assert cold.stdout == "False\n"


def test_what_is_preloaded_later_is_there_in_what_is_forked_then(nursery: Nursery) -> None:
    command = [sys.executable, "-c", "import sys; print('wave' in sys.modules)"]
    assert warm_programs.run(command, capture_output=True, text=True).stdout == "False\n"
    nursery.preload("wave")
    assert warm_programs.run(command, capture_output=True, text=True).stdout == "True\n"


def test_a_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time; time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        warm_programs.run([sys.executable, str(tmp_path / "program.py")], timeout=0.2)
    assert time.monotonic() - began < 20

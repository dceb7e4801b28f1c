"""The commands for a running job, against one job of two agents: asked here, over the network, and without a token."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest

from multiworld.cli.main import main
from tests import warm_programs

PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("works as rank", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
TOKEN = "a token for these tests"
TIMEOUT_S = 30


class Told(NamedTuple):
    status: int
    out: str
    err: str


def multiworld(*arguments: str, token: str | None = None) -> Told:
    """Run a command to its end, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.delenv("MULTIWORLD_TOKEN", raising=False)
        if token is not None:
            patch.setenv("MULTIWORLD_TOKEN", token)
        status = main(arguments)
    return Told(status, out.getvalue(), err.getvalue())


def start(*arguments: str, token: str | None = None) -> subprocess.Popen[str]:
    """Start a command whose lines are read."""
    command = [sys.executable, "-m", "multiworld", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "MULTIWORLD_TOKEN"}
    if token is not None:
        environment["MULTIWORLD_TOKEN"] = token
    return warm_programs.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@contextmanager
def ending(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no process behind."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def line_of(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read until a line matches."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        matched = re.search(pattern, line)
        if matched is not None:
            return matched
    raise AssertionError(f"no line matches {pattern!r}: {seen}")


def agent(tmp_path: Path, job: str, endpoint: str) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    elastic = ["--nnodes", "1:2", "--nproc-per-node", "2", "--restart", "worker", "--max-restarts", "9/10m"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", job]
    once = ["--rdzv-conf", "last_call_timeout=20"]  # so that the job begins when both are there
    return start("run", *elastic, *meeting, *once, str(program), token=TOKEN)


def read(url: str) -> Any:
    with urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def free_endpoint() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_operating_a_job(tmp_path: Path) -> None:
    job, endpoint = f"job-{os.getpid()}", free_endpoint()
    first, second = agent(tmp_path, job, endpoint), agent(tmp_path, job, endpoint)
    with ending(first, second):
        for process in (first, first, second, second):
            line_of(process, "works as rank")

        status = json.loads(multiworld("status", "--job", job, "--json").out)
        assert (status["job"], status["phase"], status["generation"]) == (job, "running", 1)
        assert [each["state"] for each in status["agents"]] == ["active", "active"]
        shown = multiworld("agents", "--endpoint", endpoint, token=TOKEN)
        assert [line.split()[5] for line in shown.out.splitlines()] == ["RANKS", "0-1", "2-3"]
        assert read(status["page"] + "status") == status
        refused = multiworld("status", "--endpoint", endpoint, token="another")
        assert refused.status == 1
        assert "the job tokens differ" in refused.err

        follower = start("logs", "-f", "--job", job, "2")
        with ending(follower):
            line_of(follower, r"\[default 2 g1\] works as rank 2")
            assert multiworld("kill", "2", "--job", job).status == 0
            line_of(follower, r"\[default 2 g1\] works as rank 2")
        assert "works as rank 3" in multiworld("logs", "3", "--job", job).out
        unknown = multiworld("logs", "9", "--job", job)
        assert (unknown.status, "no worker has the rank 9; the job has 0-3" in unknown.err) == (1, True)
        assert "rank 2 failed: killed by SIGKILL" in multiworld("events", "--job", job).out

        coordinator = next(each["index"] for each in status["agents"] if each["coordinates"])
        pids = {each["index"]: each["pid"] for each in status["agents"]}
        drained, stays = (first, second) if first.pid == pids[coordinator] else (second, first)
        left = multiworld("drain", str(coordinator), "--wait", "--job", job)
        assert left.status == 0, left.err
        assert drained.wait(TIMEOUT_S) == 0
        assert stays.poll() is None
        needed = multiworld("drain", "0", "--job", job)
        assert (needed.status, needed.out) == (1, "")
        assert "the job needs at least 1" in needed.err

        after = json.loads(multiworld("status", "--job", job, "--json").out)
        assert [each["pid"] for each in after["agents"]] == [stays.pid]
        assert [each["state"] for each in after["workers"]] == ["running", "running"]
        assert after["restarts"] == 1, "the workers of the host that stays were left alone"
        assert after["page"] != status["page"]
        assert read(after["page"] + "status") == after
        events = [json.loads(line) for line in multiworld("events", "--job", job, "--json").out.splitlines()]
        assert [each["number"] for each in events] == list(range(1, len(events) + 1))
        assert [each["url"] for each in events if each["kind"] == "page"] == [status["page"], after["page"]]
        kinds = [each["kind"] for each in events]
        assert kinds.index("page") < kinds.index("worker failed") < kinds.index("takeover")
        terms = [each["term"] for each in events]
        assert terms == sorted(terms)
        assert terms.index(2) == kinds.index("takeover")
        only = after["agents"][0]
        killed = multiworld(
            "--ip", only["host"], "--port", str(only["port"]), "kill_agent", "--agent_index", "0", token=TOKEN
        )
        assert killed.status == 0, killed.err
        assert stays.wait(TIMEOUT_S) == -9

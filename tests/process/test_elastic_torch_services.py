"""An agent beside its workers: it watches their timers, and goes on when nobody reads what it has to say."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.elastic.job import free_port
from multiworld.testing import scaled, wait_until
from tests import warm_programs

pytestmark = pytest.mark.process

TIMED = """
    import os, signal, sys, threading
    from torch.distributed.elastic import timer

    def hang_for_ever():
        threading.Event().wait()

    def asked(signum, frame):
        sys.exit("asked to end")

    signal.signal(signal.SIGTERM, asked)
    rank, restarts = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path = os.environ["TORCHELASTIC_TIMER_FILE"]
    client = timer.FileTimerClient(path, signal.SIGKILL if rank == "0" else signal.SIGTERM)
    with timer.expires(after=60 if restarts else 0.5, scope=f"step {rank}", client=client):
        if restarts == 0:
            hang_for_ever()
    print("timers at", path, "processors", sorted(os.sched_getaffinity(0)), flush=True)
"""
WAITING = """
    import os, sys, time

    folder, rank, restarts = sys.argv[1], os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    for _ in range(2000):
        print("x" * 99, file=sys.stderr)
    with open(f"{folder}/part", "w") as file:
        file.write(f"{os.getpid()} {os.getppid()}")
    os.rename(f"{folder}/part", f"{folder}/{rank}.{restarts}")
    while not os.path.exists(f"{folder}/end"):
        time.sleep(0.02)
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return path


def launcher(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "multiworld.run", "--restart=worker", "--max-restarts=1", *map(str, arguments)]


def until(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, timeout_s=scaled(20), poll_s=0.01)


def test_workers_that_overrun_their_timers_are_ended_as_they_asked_for_and_started_again(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": str(tmp_path)}
    command = launcher("--nproc-per-node=2", "--redirects=3", f"--log-dir={tmp_path}/logs", program(tmp_path, TIMED))
    done = warm_programs.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=40, env=environment
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert re.search(rf"rank {rank} failed: its timer step {rank} ran out after about 0\.\d s", done.stderr)
    logs = {rank: [*tmp_path.glob(f"logs/*/attempt_*/{rank}/std*.log")] for rank in (0, 1)}
    texts = {rank: "".join(path.read_text() for path in sorted(paths)) for rank, paths in logs.items()}
    assert "hang_for_ever" in texts[0]  # its stacks
    assert "asked to end" in texts[1]
    assert f"timers at {tmp_path}/multiworld-timers-" in texts[0]
    assert f"processors {sorted(os.sched_getaffinity(0))}" in texts[0]  # bound to none
    assert not [*tmp_path.glob("multiworld-timers-*")]


@pytest.mark.usefixtures("no_leaks")
def test_an_agent_whose_console_takes_nothing_keeps_its_place_and_starts_its_worker_again(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    port = free_port()
    endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"
    script = program(tmp_path, WAITING)
    command = launcher("--nnodes=2", "--rdzv-backend=c10d", endpoint, "--lease-s=0.5", script, tmp_path)
    environment = {**os.environ, "LOGLEVEL": "INFO"}

    def coordinates() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    def workers(restarts: int) -> dict[int, int]:
        """Return their pids, by that of their agent."""
        told = [map(int, path.read_text().split()) for path in tmp_path.glob(f"*.{restarts}")]
        return {agent: pid for pid, agent in told}

    mute = warm_programs.Popen(command, env=environment, stdout=write_fd, stderr=write_fd)
    until(coordinates)  # so it is this one that tells what happens
    other = warm_programs.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    console = os.fdopen(read_fd, "rb")
    shown: list[str] = []
    reader = threading.Thread(target=lambda: shown.append(console.read().decode()))
    try:
        until(lambda: {mute.pid, other.pid} == set(workers(0)))
        until(lambda: not select.select([], [write_fd], [], 0)[1])  # it is full
        os.close(write_fd)
        os.kill(workers(0)[mute.pid], signal.SIGKILL)
        until(lambda: set(workers(1)) == {mute.pid})
        reader.start()  # in time for the last words, which wait for a second
        (tmp_path / "end").touch()
        said = other.communicate(timeout=scaled(20))[1]
        assert (mute.wait(scaled(20)), other.returncode) == (0, 0), said
        assert "is lost" not in said
        reader.join(scaled(20))
        assert "killed by SIGKILL" in "".join(shown)  # told once it was read
    finally:
        for agent in (mute, other):
            agent.kill()
            agent.communicate()
        if reader.ident is not None:
            reader.join(scaled(20))
        console.close()

"""A job whose agent is short of descriptors goes on: that is no failure of its workers."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from multiworld.testing import scaled, wait_until

pytestmark = pytest.mark.usefixtures("no_leaks")

PROGRAM = """
import os, time, multiworld
print("PORT", os.environ["MASTER_PORT"], "PID", os.getpid(), flush=True)
while not os.path.exists(os.environ["DONE"]):
    time.sleep(0.02)
"""
LIMIT = 1024


class Job:
    """Two workers that wait for a file; a budget of one restart."""

    def __init__(self, folder: Path) -> None:
        self.done, self.log = folder / "done", folder / "log"
        program = folder / "program.py"
        program.write_text(PROGRAM)
        options = ["--nproc-per-node", "2", "--no-page", "--restart", "worker", "--max-restarts", "1/10m"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "multiworld.run", *options, str(program)],
                stdout=log,
                stderr=log,
                env={**os.environ, "DONE": str(self.done)},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)),
            )

    @property
    def workers(self) -> list[tuple[int, int]]:
        """Of those that were started until now: ``MASTER_PORT`` and pid."""
        found = re.findall(r"PORT (\d+) PID (\d+)", self.log.read_text())
        return [(int(port), int(pid)) for port, pid in found]

    @property
    def num_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def says(self, text: str) -> bool:
        return wait_until(lambda: text in self.log.read_text(), scaled(20))

    def end(self) -> int:
        self.done.touch()
        return self.process.wait(scaled(20))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    try:
        assert wait_until(lambda: len(job.workers) == 2, scaled(60)), job.log.read_text()
        yield job
    finally:
        job.process.kill()
        job.process.wait()


@contextmanager
def no_descriptors_left(job: Job) -> Iterator[None]:
    before = resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, before)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For the strangers, which this process is: the usual soft limit of a user is no more than they need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4 * LIMIT, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_strangers_at_the_masters_port_and_want_of_descriptors_cost_a_job_nothing(job: Job) -> None:
    (port, pid), _ = job.workers
    before = job.num_descriptors
    with ExitStack() as stack:
        for _ in range(LIMIT):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), scaled(5)))
        assert job.says("too many have not proved themselves yet")
        assert before < job.num_descriptors < LIMIT // 2

        with no_descriptors_left(job):
            os.kill(pid, signal.SIGKILL)
            assert job.says("cannot be started now, and is tried again in")
        assert wait_until(lambda: len(job.workers) == 3, scaled(20)), job.log.read_text()
    assert job.end() == 0, job.log.read_text()


def test_a_worker_that_waits_to_be_started_ends_with_its_job(job: Job) -> None:
    with no_descriptors_left(job):
        os.kill(job.workers[0][1], signal.SIGKILL)
        assert job.says("cannot be started now, and is tried again in")
        job.process.terminate()
        job.done.touch()
    assert job.process.wait(scaled(20)) == 128 + signal.SIGTERM
    assert "Traceback" not in job.log.read_text()

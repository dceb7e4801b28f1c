"""Worlds in real MPI jobs. They need mpiexec and mpi4py, and are skipped without."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import multiworld as mw
from multiworld.channel.mpi import job as mpi_job
from multiworld.testing import (
    Crew,
    JobFailedError,
    MpiLauncher,
    WorkerGroup,
    check_returned,
    measure,
    scaled,
    wait_until,
)
from multiworld.testing.mpi_launcher import OPEN_MPI_OPTIONS, why_no_jobs
from multiworld.testing.worker_process import UNKNOWN_STATUS
from tests.bounds import KILL_S

pytestmark = pytest.mark.alone

RUN_S = 40.0
NO_JOBS = why_no_jobs()
needs_jobs = pytest.mark.skipif(bool(NO_JOBS), reason=NO_JOBS)


class Job:
    """A job under way, and what its processes have said."""

    def __init__(self, launcher: subprocess.Popen[bytes], folder: Path) -> None:
        self._launcher, self._folder = launcher, folder

    def said(self, rank: int, event: str | None = None) -> list[dict[str, Any]]:
        path = self._folder / f"rank{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return [record for record in records if event is None or record["event"] == event]

    def await_said(self, rank: int, event: str) -> dict[str, Any]:
        def came() -> bool:
            return bool(self.said(rank, event)) or self._launcher.poll() is not None

        assert wait_until(came, RUN_S)
        assert self.said(rank, event), self.output()
        return self.said(rank, event)[0]

    def wait(self) -> int:
        """Return the exit status of mpiexec."""
        try:
            return self._launcher.wait(scaled(RUN_S))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended\n{self.output()}") from None

    def output(self) -> str:
        return (self._folder / "output").read_text()

    def kill(self) -> None:
        """End mpiexec and its processes, which are in groups of their own."""
        for record in (self.said(rank, "started") for rank in range(4)):
            for started in record:
                if str(self._folder) in command_line(started["pid"]):
                    os.kill(started["pid"], signal.SIGKILL)
        if self._launcher.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._launcher.pid, signal.SIGKILL)
            self._launcher.wait()


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@contextmanager
def job_of(size: int, program: str, folder: Path, *options: str) -> Iterator[Job]:
    command = ["mpiexec", "-n", str(size), *OPEN_MPI_OPTIONS, *options]
    command += [sys.executable, "-m", "tests.process.mpi_programs", program, str(folder)]
    with (folder / "output").open("wb") as output:
        launcher = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    job = Job(launcher, folder)
    try:
        yield job
    finally:
        job.kill()


@needs_jobs
def test_worlds_of_a_job_do_all_that_worlds_do(tmp_path: Path) -> None:
    with job_of(3, "everything", tmp_path) as job:
        assert job.wait() == 0, job.output()
        for rank in range(3):
            assert job.said(rank, "done"), job.output()
            assert job.said(rank, "idle")[0]["cpu_s"] < 0.1
        assert job.said(1, "mismatched")


@needs_jobs
def test_with_recovery_the_others_go_on_and_a_spare_process_takes_the_place_of_a_killed_one(tmp_path: Path) -> None:
    with job_of(3, "killed", tmp_path, "--enable-recovery") as job:
        assert job.wait() == 0, job.output()
        (noticed,) = job.said(0, "noticed")
        assert noticed["rank"] == 1
        assert noticed["at"] - job.said(1, "killed")[0]["at"] < KILL_S + 0.5
        assert job.said(0, "done"), job.output()
        assert job.said(2, "done"), job.output()


@needs_jobs
def test_a_process_ends_soon_though_a_stopped_peer_keeps_mpi_from_being_finalized(tmp_path: Path) -> None:
    with job_of(2, "stopped", tmp_path, "--enable-recovery") as job:
        assert job.await_said(0, "noticed")["error"] == "PeerStoppedError"
        done = job.await_said(0, "done")
        assert wait_until(lambda: not command_line(done["pid"]), mpi_job.FINALIZE_S + 5)
        os.kill(job.said(1, "stopped")[0]["pid"], signal.SIGCONT)
        job.wait()


@needs_jobs
def test_a_program_uses_mpi_beside_its_worlds_and_mpiexec_ends_it_when_one_process_is_killed(tmp_path: Path) -> None:
    """As the docs say: without recovery."""
    with job_of(2, "owned", tmp_path) as job:
        assert job.wait() != 0
        assert job.said(0, "worked"), job.output()
        assert not job.said(0, "done")


@needs_jobs
def test_a_process_that_never_initializes_mpi_stops_no_interpreter_and_fails_the_join_in_time(tmp_path: Path) -> None:
    with job_of(2, "absent", tmp_path) as job:
        refused = job.await_said(0, "refused")
        assert "MPI_Init waits for all processes" in refused["text"]
        assert refused["error"] == "ChannelUnavailableError"
        assert len(job.said(0, "tick")) > 5
        job.await_said(0, "done")


@needs_jobs
def test_a_crew_in_a_job_replaces_who_is_killed_by_spare_processes_and_leaves_nothing() -> None:
    before, files = measure(), set(os.listdir("/dev/shm"))
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, launch=MpiLauncher(num_spares=1))
        crew.form("w", backend="mpi")
        victim, other = crew[1].worker, crew[0]
        victim.stop()
        assert victim.state == "stopped"
        victim.cont()
        crew.check_works("w")
        victim.kill()
        assert victim.wait() == UNKNOWN_STATUS, "mpiexec knows it"
        victim.kill()  # without effect on whoever has its pid by now
        other.await_broken("w")
        newcomer = crew.hire(1)
        crew.await_ready([newcomer])
        crew.reform("w", 1, newcomer, backend="mpi")
        crew.check_works("w")
        with pytest.raises(JobFailedError, match="all 3 processes of the MPI job are in use or dead"):
            crew.hire(1)
    check_returned(before)
    assert set(os.listdir("/dev/shm")) <= files


@needs_jobs
def test_a_job_that_cannot_start_says_what_mpiexec_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_ras_base_launch_orted_on_hn", "1")
    monkeypatch.setenv("OMPI_MCA_plm", "no-such-launcher")
    before = measure()
    with pytest.raises(JobFailedError, match=r"mpiexec ended with [^0]"), WorkerGroup() as workers:
        Crew(workers, 1, launch=MpiLauncher())
    check_returned(before)


def test_a_process_that_is_gone_before_it_is_needed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of mpiexec: two processes, of which the first has ended when the second one comes."""
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[-1])"
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\n{sys.executable} -c '{connect}' \"$@\"\n{sys.executable} -c '{connect}' \"$@\"\n")
    mpiexec.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    before = measure()
    with pytest.raises(JobFailedError, match="of the MPI job is gone"), WorkerGroup() as workers:
        Crew(workers, 1, launch=MpiLauncher(num_spares=1))
    check_returned(before)


async def test_a_process_that_no_launcher_has_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in mpi_job.LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    async with mw.WorldManager() as manager:
        with pytest.raises(mw.ChannelUnavailableError, match="not started by an MPI launcher"):
            await manager.join("w", 0, 1, manager.serve_store("tcp://127.0.0.1:0"), backend="mpi")


SPINS = """
import sys
from multiworld.testing import mpi_process

mpi_process._initialize_mpi = lambda: [None for _ in iter(int, 1)]  # as MPI_Init does while others are missing
mpi_process.main(sys.argv[1])
"""


def test_a_process_that_initializes_mpi_ends_with_its_launcher(tmp_path: Path) -> None:
    place = str(tmp_path / "launcher")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(1)
        listener.settimeout(scaled(RUN_S))
        with subprocess.Popen([sys.executable, "-c", SPINS, place]) as process:
            try:
                listener.accept()[0].close()
                assert process.wait(scaled(RUN_S)) == -signal.SIGKILL
            finally:
                process.kill()

"""Workers, agents and hosts of a launched job are killed, stopped and started anew; only what failed is replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.elastic.job import OURS, OURS_PLAIN, Job, Side
from benchmarks.elastic.journal import Formation
from multiworld.testing import scaled

pytestmark = pytest.mark.usefixtures("no_leaks")

SOON_S = 1.0
LEASE_S = 0.5
QUICK = ("--lease-s", str(LEASE_S), "--rdzv-conf", "last_call_timeout=0.5")


def job_of(side: Side, **settings: Any) -> Job:
    return Job(side, max_restarts=10, options=QUICK, **settings)


def strike(job: Job, formation: Formation, rank: int, signum: int) -> Formation:
    """Send a signal to a rank, and return the next world of as many."""
    at = time.monotonic()
    os.kill(formation.pids[rank], signum)
    return job.await_world(formation.world_size, at, scaled(20))


def until(job: Job, condition: Callable[[], bool], timeout_s: float) -> bool:
    return job.journal.wait(condition, scaled(timeout_s))


def test_a_worker_that_is_killed_or_stopped_is_replaced_and_a_signal_ends_all() -> None:
    with job_of(OURS, nproc=3) as job:
        [node] = job.start()
        first = job.await_world(3, 0.0)
        second = strike(job, first, 1, signal.SIGKILL)
        assert {rank for rank in range(3) if first.pids[rank] != second.pids[rank]} == {1}
        third = strike(job, second, 2, signal.SIGSTOP)
        assert {rank for rank in range(3) if second.pids[rank] != third.pids[rank]} == {2}
        assert first.different("master") == second.different("master") == third.different("master")
        assert len(third.different("generation")) == 1
        assert "rank 1 failed: killed by SIGKILL" in node.output
        assert "rank 2 failed: stopped" in node.output

        node.process.send_signal(signal.SIGTERM)
        asked: set[int] = set()

        def all_are_asked() -> bool:
            asked.update(entry.pid for entry in job.journal.entries if entry.event == "asked to end")
            return asked == set(third.pids.values())

        assert until(job, all_are_asked, SOON_S)
        assert until(job, lambda: node.returncode is not None, 10)
        assert node.returncode == 128 + signal.SIGTERM
        assert node.wait_gone() == []


def test_all_workers_of_a_plain_program_are_started_again_together_and_go_on_from_the_checkpoint() -> None:
    with job_of(OURS_PLAIN, nproc=2) as job:
        [node] = job.start()
        first = job.await_world(2, 0.0)
        job.await_steps(first)
        second = strike(job, first, 1, signal.SIGKILL)
        assert not set(first.pids.values()) & set(second.pids.values())
        assert second.different("generation") == {1}  # of restarts
        assert len(second.different("master")) == 1
        assert not first.different("master") & second.different("master")
        assert min(entry["step"] for entry in second.first_steps.values()) > 0
        assert node.end(scaled(10))
        assert node.wait_gone() == []


def test_the_job_goes_on_without_an_agent_with_a_new_one_and_without_the_coordinators_host() -> None:
    with job_of(OURS, nnodes="1:2", nproc=1) as job:
        coordinator, other = job.start(2)
        first = job.await_world(2, 0.0)
        stays = {entry["node"]: entry.pid for entry in first.first_steps.values()}[coordinator.name]

        at = other.kill_agent()
        assert other.wait_gone(scaled(SOON_S)) == []  # orphans
        alone = job.await_world(1, at, scaled(10))
        assert alone.pids == {0: stays}

        at = time.monotonic()
        heir = job.start_node()
        both = job.await_world(2, at, scaled(20))
        assert stays in both.pids.values()
        [joined] = set(both.pids.values()) - {stays}

        at = coordinator.kill()
        left = job.await_world(1, at, scaled(10))
        assert left.pids == {0: joined}
        assert left.first_steps[0]["restarts"] == 0
        assert "this agent coordinates the job (term 2)" in heir.output
        assert heir.end(scaled(10))
        assert heir.returncode == 128 + signal.SIGTERM
        assert heir.wait_gone() == []

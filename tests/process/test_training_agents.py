"""An agent of a training's launcher is killed, the one with the coordinator and the store: the other one goes on."""

from __future__ import annotations

import os
import signal

import pytest

from benchmarks.training.run import Run
from benchmarks.training.sides import OURS
from multiworld.testing import scaled

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(180))]

OPTIONS = ("--task", "clusters", "--dropout", "0", "--steps", "1000000", "--pause-s", "0.02", "--lease-s", "1")
START_S, GO_ON_S = 30.0, 20.0


def test_a_rank_is_replaced_under_the_agent_that_is_left_when_the_coordinators_was_killed() -> None:
    with Run(OURS, 2, OPTIONS) as run:
        first = run.start_node(num_hosts=2)
        run.wait(lambda: "this agent coordinates" in first.output, scaled(START_S), "a coordinator")
        second = run.start_node(num_hosts=2)
        replicas = set(run.await_steady(4).values())
        left = replicas.intersection(second.others())
        assert len(left) == 2
        at = first.kill_agent()
        run.wait(lambda: in_a_world_of(run, 2, at) == left, scaled(GO_ON_S), "the next step of those that are left")
        killed = left.pop()
        os.kill(killed, signal.SIGKILL)
        at = run.journal.entries[-1].at
        run.wait(lambda: len(in_a_world_of(run, 2, at) - {killed}) == 2, scaled(GO_ON_S), "a replacement")
        assert left < in_a_world_of(run, 2, at)
        assert second.returncode is None
        assert first.wait_gone() == []  # its ranks ended with it


def in_a_world_of(run: Run, size: int, after: float) -> set[int]:
    """Return the processes that have committed a step with so many replicas since."""
    return {pid for pid, entries in run.commits(after).items() if any(each["replicas"] == size for each in entries)}

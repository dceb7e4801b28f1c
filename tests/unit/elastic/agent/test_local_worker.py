"""What an agent tells of a worker that ended."""

from __future__ import annotations

import signal

import pytest

from multiworld.elastic.agent.local_worker import LocalWorker
from multiworld.elastic.job.failure import FailureCause, WorkerFailure
from multiworld.wire.progress.thread import ProgressThread
from tests.unit.elastic.agent.test_environment import PLACE


@pytest.mark.parametrize(
    ("is_quiet", "returncode", "is_told"),
    [
        (True, -signal.SIGTERM, False),
        (True, -signal.SIGKILL, False),
        (True, 1, True),  # it failed before it could obey
        (True, -signal.SIGSEGV, True),
        (False, -signal.SIGTERM, True),
    ],
)
def test_how_a_worker_failed_is_told_unless_it_obeyed_and_nobody_asks(
    is_quiet: bool, returncode: int, is_told: bool
) -> None:
    loop = ProgressThread("test-held")
    try:
        held = LocalWorker(loop, "worker", PLACE, on_exit=lambda _: None, agent_was_away=lambda: 0.0)
        failure = WorkerFailure(
            rank=0,
            local_rank=0,
            node_rank=0,
            role="default",
            hostname="host",
            pid=1,
            generation=1,
            returncode=returncode,
            at_us=0,
            cause=FailureCause.SIGNAL,
        )
        held.did_not_begin(failure, returncode)
        held.is_quiet = is_quiet
        assert held.told_failure is (failure if is_told else None)
    finally:
        loop.stop()

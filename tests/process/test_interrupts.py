"""Ctrl-C at any step: no lock stays held, and the process comes to its end in time."""

from __future__ import annotations

import pytest

from benchmarks.faults.interrupts import APIS, receive_until_interrupted
from multiworld.testing import WorkerGroup, scaled

pytestmark = pytest.mark.alone

TRIALS = 50
SEED = 3
CLOSE_S = 6.0
"""Two managers, each of which gives its peers 2 s at its exit."""


@pytest.mark.parametrize("api", sorted(APIS))
def test_a_process_that_is_interrupted_amid_its_receives_ends_in_time(api: str) -> None:
    with WorkerGroup() as workers:
        worker = workers.start(receive_until_interrupted, api, TRIALS, SEED)
        reports = [worker.await_event("interrupted") for _ in range(TRIALS)]
        assert worker.wait() == 0
        assert max(report["close_s"] for report in reports) < scaled(CLOSE_S), f"seed {SEED}"
        assert sum(report["was_raised"] for report in reports) >= TRIALS - 2

"""A member dies at a random moment of a collective: the others raise, and no one ever gets wrong data."""

from __future__ import annotations

import threading

import pytest

from multiworld.testing import Crew, FaultPlan, WorkerGroup, shown_on_failure
from multiworld.testing.rounds import KINDS

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("backend", ["tcp", "gloo"])
@pytest.mark.parametrize(("seed", "numel"), [(1, 1), (2, 5000), (3, 300_000)])
def test_every_kind_of_collective_raises_and_none_returns_wrong_data(backend: str, seed: int, numel: int) -> None:
    """One world for each of the eight kinds, all busy when the member dies; small, middle and large tensors."""
    plan = FaultPlan.random(seed, targets=["0", "1", "2"], within_s=0.5)
    with shown_on_failure(plan), WorkerGroup() as workers:
        crew = Crew(workers, 3)
        for kind in KINDS:
            crew.form(kind, backend=backend)
        (fault,) = plan.faults
        victim = int(fault.target)
        plays = [member.call("play", world=kind, kind=kind, numel=numel) for kind in KINDS for member in crew.members]
        for member in crew.members:
            for kind in KINDS:
                member.worker.await_event("playing", kind=kind)
        threading.Event().wait(fault.at_s)
        crew[victim].worker.kill()
        for play in plays:
            if play.member is not crew[victim]:
                outcome = play.failure()
                assert outcome.error == "PeerDiedError", outcome.message

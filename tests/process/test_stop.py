"""A member is stopped: the others know after the lease, and it learns that it was fenced when it goes on."""

from __future__ import annotations

import time

import pytest

from multiworld.testing import Crew, WorkerGroup
from tests.bounds import STOP_S

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

BACKENDS = ["tcp", "gloo"]
LEASE_S = 0.6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("victim", [0, 1])
def test_every_other_member_knows_after_the_lease(backend: str, victim: int) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, lease_s=LEASE_S)
        crew.form("w", backend=backend)
        crew.form("healthy", [rank for rank in range(3) if rank != victim], backend=backend)
        pending = [member.call("recv", world="w", src=victim).started() for member in crew.survivors(victim)]
        stopped_at = crew[victim].worker.stop()
        for member, call in zip(crew.survivors(victim), pending, strict=True):
            outcome = call.failure()
            assert outcome.error == "PeerStoppedError", outcome.message
            assert outcome.at - stopped_at < LEASE_S + STOP_S, f"known after {outcome.at - stopped_at:.3f} s"
            assert member.await_broken("w")["fields"]["rank"] == victim
        crew.check_works("healthy", [rank for rank in range(3) if rank != victim])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pause_shorter_than_the_lease_breaks_nothing(backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, lease_s=4)
        crew.form("w", backend=backend)
        for victim in (0, 1):
            crew[victim].worker.stop()
            time.sleep(0.5)  # the pause itself
            crew[victim].worker.cont()
            crew.check_works("w")
        assert not any(member.is_broken("w") for member in crew.members)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_member_that_goes_on_later_is_fenced_from_the_new_generation(backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, lease_s=LEASE_S)
        crew.form("w", backend=backend)
        newcomer, stopped = crew.hire(2), crew[2]
        crew.await_ready([newcomer])
        waiting = stopped.call("recv", world="w", src=0).started()
        stopped.worker.stop()
        for member in crew.survivors(2):
            assert member.await_broken("w")["error"] == "PeerStoppedError"
        crew.reform("w", 2, newcomer, backend=backend)
        stopped.worker.cont()
        assert waiting.failure().error == "StaleGenerationError"
        assert stopped.call("send", world="w", dst=0, value=666.0).failure().error == "StaleGenerationError"
        assert stopped.await_broken("w")["fields"]["generation"] == 1
        receive = crew[0].call("recv", world="w", src=2).started()
        newcomer.do("send", world="w", dst=0, value=5.0)
        assert receive.result() == [5.0, 5.0]
        crew.check_works("w")


def test_a_fenced_member_may_join_another_world() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, lease_s=LEASE_S)
        crew.form("w")
        crew[1].worker.stop()
        assert crew[0].await_broken("w")["error"] == "PeerStoppedError"
        crew[1].worker.cont()
        assert crew[1].await_broken("w")["error"] == "StaleGenerationError"
        crew.form("x")
        crew.check_works("x")
        for call in [member.call("rejoin", world="w", timeout_s=20) for member in crew.members]:
            assert call.result()["generation"] == 2
        crew.check_works("w")

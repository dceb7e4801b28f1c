"""The store introduces, it does not rule: worlds that stand do not notice what happens to it."""

from __future__ import annotations

import pytest

from multiworld.testing import Crew, WorkerGroup

pytestmark = pytest.mark.usefixtures("no_leaks")

BACKENDS = ["tcp", "gloo"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_worlds_stand_without_their_store_and_joins_say_clearly_that_it_is_gone(backend: str, fault: str) -> None:
    """Rank 2 hosts the store, and is a member of another world only."""
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, store_host=2, lease_s=0.5)
        crew.form("standing", [0, 1], backend=backend)
        crew.form("other", [1, 2], backend=backend)
        plays = [crew[rank].call("play", world="standing", kind="all_reduce") for rank in (0, 1)]
        for rank in (0, 1):
            crew[rank].worker.await_event("playing")
        getattr(crew[2].worker, fault)()
        crew[1].await_broken("other")
        fields = {"world_size": 2, "store": crew.store, "backend": backend, "timeout_s": 1.0}
        joins = [crew[rank].call("join", world="new", rank=rank, **fields) for rank in (0, 1)]
        for join in joins:
            outcome = join.failure()
            assert "JoinError" in outcome.bases, outcome.message
            assert crew.store in outcome.message
            assert outcome.took_s < 1.5
        for play in plays:
            play.member.do("cancel_call", call=play.number)
            assert play.failure().error == "CancelledError"
        assert not crew[0].is_broken("standing")
        assert not crew[1].is_broken("standing")
        crew.store = crew[0].do("serve_store")
        crew.form("new", [0, 1], backend=backend)
        crew.check_works("new", [0, 1])


def test_one_store_serves_jobs_that_do_not_meet() -> None:
    with WorkerGroup() as workers:
        first = Crew(workers, 2, job="a")
        second = Crew(workers, 2, job="b")
        second.store = first.store
        first.form("w")
        second.form("w")
        first.check_works("w")
        second.check_works("w")
        first[0].worker.kill()
        first[1].await_broken("w")
        second.check_works("w")
        assert not any(member.is_broken("w") for member in second.members)

"""A member is killed while a world is being formed: its rank is free at once, and a replacement takes its place."""

from __future__ import annotations

import threading

import pytest

from multiworld.testing import Crew, FaultPlan, WorkerGroup, shown_on_failure

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_a_member_that_is_killed_while_it_waits_frees_its_rank() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        newcomer = crew.hire(2)
        fields = {"world": "w", "world_size": 3, "store": crew.store, "backend": "tcp", "timeout_s": 20}
        waiting = [crew[rank].call("join", rank=rank, **fields).started() for rank in (1, 2)]
        crew[2].worker.kill()
        crew.await_ready([newcomer])
        crew.members[2] = newcomer
        joins = [crew[0].call("join", rank=0, **fields), newcomer.call("join", rank=2, **fields), waiting[0]]
        for join in joins:
            join.result()
        crew.check_works("w")


@pytest.mark.parametrize("backend", ["tcp", "gloo"])
def test_a_member_that_is_killed_amid_the_formation_costs_a_generation_or_two(backend: str) -> None:
    """Killed 0 to 15 ms after all were told to join. Where the world was formed before, the survivors rejoin it."""
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        for number in range(4):
            newcomer = crew.hire(2)
            crew.await_ready([newcomer])
            plan = FaultPlan.random(number, targets=["2"], within_s=0.015)
            fields = {"world": f"w{number}", "world_size": 3, "store": crew.store, "backend": backend, "timeout_s": 20}
            with shown_on_failure(plan):
                joins = [crew[rank].call("join_until_it_works", rank=rank, **fields) for rank in (0, 1)]
                crew[2].call("join", rank=2, **fields)
                threading.Event().wait(plan.faults[0].at_s)
                crew[2].worker.kill()
                crew.members[2] = newcomer
                joins.append(newcomer.call("join_until_it_works", rank=2, **fields))
                generations = {join.result(40) for join in joins}
                assert len(generations) == 1
                assert generations <= {1, 2, 3}

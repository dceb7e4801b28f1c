"""A crew that lives through many faults: killed members are replaced by processes that were started ahead of need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multiworld.testing import Crew, Fault, FaultPlan, Member, WorkerGroup

__all__ = ["Roster", "draw", "leave_all"]


class Roster:
    """``crew`` with a spare process; member 0 serves the store at first, and the next rank when that one dies.

    Only the first ``num_mortal`` ranks are ever killed, and so serve it; by default all.
    """

    def __init__(self, workers: WorkerGroup, size: int, *, num_mortal: int | None = None, **options: Any) -> None:
        self.crew = Crew(workers, size, **options)
        self._workers = workers
        self._num_mortal = size if num_mortal is None else num_mortal
        self._store_rank = 0
        self._spare = self.crew.hire(0)

    def replace(self, victim: int) -> None:
        """Bury a killed member, put the spare in its place, start the next spare, and see that there is a store."""
        worker = self.crew[victim].worker
        worker.close()
        self._workers.workers.remove(worker)
        self.crew.await_ready([self._spare])
        self.crew.members[victim], self._spare = self._spare, self.crew.hire(0)
        if victim == self._store_rank:
            self._store_rank = (victim + 1) % self._num_mortal
            self.crew.store = self.crew[self._store_rank].do("serve_store")


def draw(seed: int, number: int, size: int, within_s: float) -> tuple[FaultPlan, Fault, int]:
    """Return the plan of one trial, its one fault, and the victim's rank."""
    plan = FaultPlan.random(seed + number, targets=[str(rank) for rank in range(size)], within_s=within_s)
    return plan, plan.faults[0], int(plan.faults[0].target)


def leave_all(members: Sequence[Member], worlds: Sequence[str]) -> None:
    """Leave worlds, broken or not, so that they do not pile up."""
    for call in [member.call("leave", world=world) for member in members for world in worlds]:
        call.outcome()

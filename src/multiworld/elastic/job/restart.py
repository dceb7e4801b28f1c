"""Decide what is started again after a failure, how often, and how soon. Pure: values and ``now``."""

from __future__ import annotations

from collections.abc import Iterable

from ...wire.backoff import BackOff
from .layout import Slot
from .options import RestartBudget, RestartPolicy
from .plan import JobPlan
from .slots import Post, Posts

DEFAULT_BUDGET = RestartBudget(max_restarts=3, per_s=600.0)
"""For programs that use multiworld, where nothing else is asked for."""
QUICK_S = 2.0  # who fails sooner after its start is likely to fail again
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
JOB = "job"  # whose budget it is when everything is started again together


class Restarts:
    """What one job starts again, against its budget. Times are seconds of one monotonic clock.

    ``plan``: what its user asked for.
    """

    def __init__(self, plan: JobPlan, now: float) -> None:
        self._plan = plan
        self.uses_multiworld = False
        """Whether any worker was seen to, since all were started together last."""
        self.not_before = now
        """When all workers may be started again together."""
        self.kept_by_kernel: set[Slot] = set()
        """Where a worker cannot be ended: so is the device, say, that another in its place would need."""
        self._times: dict[Slot | str, list[float]] = {}
        self._back_offs: dict[Slot | str, BackOff] = {}

    @property
    def policy(self) -> RestartPolicy:
        """Which policy holds: ``auto`` is decided by whether any worker was seen to use multiworld."""
        if self._plan.policy is not RestartPolicy.AUTO:
            return self._plan.policy
        return RestartPolicy.WORKER if self.uses_multiworld else RestartPolicy.ALL

    @property
    def are_of_all(self) -> bool:
        return self.policy is RestartPolicy.ALL

    @property
    def _budget(self) -> RestartBudget:
        if self._plan.budget is not None:
            return self._plan.budget
        if self._plan.default_budget is not None:
            return self._plan.default_budget
        return RestartBudget() if self.are_of_all else DEFAULT_BUDGET

    def count(self, slot: Slot) -> int:
        """Return how often it was started again, by itself or with all others."""
        return sum(len(self._times.get(key, ())) for key in (slot, JOB))

    def num_left(self, slot: Slot, now: float) -> int:
        """Return how many more restarts are within the budget now."""
        times, budget = self._times.get(self._key(slot), []), self._budget
        recent = times if budget.per_s is None else [at for at in times if now - at < budget.per_s]
        return max(0, budget.max_restarts - len(recent))

    def take_over(self, slot: Slot, times: list[float]) -> None:
        """Count those that another coordinator has ordered."""
        self._times[slot] = times

    def merge(self, slots: Iterable[Slot]) -> None:
        """Count what was counted for each of them as one: they were always started again together."""
        known = [self._times.pop(slot) for slot in slots if slot in self._times]
        self._times[JOB] = max([*known, self._times.get(JOB, [])], key=len)

    def forget(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._times.pop(slot, None)
            self._back_offs.pop(slot, None)

    def why_given_up(self, slot: Slot, worker: Post, now: float) -> str | None:
        """Return why a worker that has failed is not started again, or None if it may be."""
        if slot in self.kept_by_kernel:
            return f"rank {worker.rank} hangs in the kernel: nothing is started again"
        if self.num_left(slot, now):
            return None
        key, budget = self._key(slot), self._budget
        who = "the job" if key == JOB else f"rank {worker.rank}"
        if not budget.max_restarts:
            return f"{who} may not be started again: {self._plan.more_restarts}"
        within = f" in {budget.per_s:g} s" if budget.per_s is not None else ""
        was, allowed = _times(len(self._times.get(key, ()))), f"may be {_times(budget.max_restarts)}{within}"
        return f"{who} was started again {was}, and {allowed}: {self._plan.more_restarts}"

    def note(self, slot: Slot, worker: Post, now: float, *, is_fault_of_its_own: bool) -> float:
        """It is started again; returns in how many seconds: 0 at first, twice as many while it fails right after."""
        key, delay_s = self._key(slot), 0.0
        self._times.setdefault(key, []).append(now)
        if is_fault_of_its_own:
            back_off = self._back_offs.setdefault(key, BackOff(FIRST_DELAY_S, MAX_DELAY_S, num_free=1))
            if now - worker.started_at >= max(QUICK_S, 2 * back_off.coming_s):
                back_off.reset()
            delay_s = back_off.next_s()
        worker.not_before = self.not_before = now + delay_s
        return delay_s

    def others(self, slot: Slot, posts: Posts) -> list[tuple[Slot, Post]]:
        """Return the workers that are started again with it: none, those that share a world with it, or all."""
        policy = self.policy
        if policy is RestartPolicy.WORKER:
            return []
        shared = posts[slot].worlds
        return [each for each in posts.alive() if policy is RestartPolicy.ALL or shared & each[1].worlds]

    def _key(self, slot: Slot) -> Slot | str:
        """Return what a restart of the worker in that slot is counted for."""
        return JOB if self.are_of_all else slot


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

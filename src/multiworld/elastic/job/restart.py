"""Decide what is started again after a failure, how often, and how soon. Pure: values and ``now``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from ...wire.backoff import BackOff
from .layout import Slot
from .options import RestartBudget, RestartPolicy
from .plan import JobPlan
from .posts import Post, Posts

__all__ = ["DEFAULT_BUDGET", "RestartLedger", "Restarts", "fault_domain"]

S = TypeVar("S", bound=Hashable)

DEFAULT_BUDGET = RestartBudget(max_restarts=3, per_s=600.0)
"""For programs that use multiworld, where nothing else is asked for."""
QUICK_S = 2.0  # who fails sooner after its start is likely to fail again
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
JOB = "job"  # whose budget it is when everything is started again together


def fault_domain(
    policy: RestartPolicy, failed: S, worlds: Mapping[S, AbstractSet[str]], everyone: AbstractSet[S]
) -> set[S]:
    """Return what has to be started again with ``failed``. ``worlds`` names the worlds that each one was in."""
    if policy is RestartPolicy.ALL:
        return set(everyone)
    if policy is RestartPolicy.WORLD:
        shared = worlds.get(failed, frozenset())
        return {failed} | {other for other in everyone if shared & worlds.get(other, frozenset())}
    return {failed}


class RestartLedger:
    """How often each one was started again, against its budget. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._times: dict[Hashable, list[float]] = {}
        self._back_offs: dict[Hashable, BackOff] = {}

    def count(self, who: Hashable) -> int:
        return len(self._times.get(who, ()))

    def num_left(self, who: Hashable, budget: RestartBudget, now: float) -> int:
        """Return how many more restarts are within the budget now."""
        times = self._times.get(who, [])
        recent = times if budget.per_s is None else [at for at in times if now - at < budget.per_s]
        return max(0, budget.max_restarts - len(recent))

    def allows(self, who: Hashable, budget: RestartBudget, now: float) -> bool:
        """Whether one more restart is within the budget."""
        return self.num_left(who, budget, now) > 0

    def note(self, who: Hashable, now: float) -> None:
        """It is started again."""
        self._times.setdefault(who, []).append(now)

    def restore(self, who: Hashable, times: list[float]) -> None:
        """Take over what another coordinator knew."""
        self._times[who] = list(times)

    def merge(self, each: Iterable[Hashable], into: Hashable) -> None:
        """Count what was counted for each of them as one: they were always started again together."""
        known = [self._times.pop(who) for who in list(each) if who in self._times]
        self._times[into] = max([*known, self._times.get(into, [])], key=len)

    def forget(self, who: Hashable) -> None:
        self._times.pop(who, None)
        self._back_offs.pop(who, None)

    def delay_s(self, who: Hashable, ran_s: float) -> float:
        """Return how long to wait before the next start: nothing at first, doubling while it fails right after it."""
        back_off = self._back_offs.setdefault(who, BackOff(FIRST_DELAY_S, MAX_DELAY_S, num_free=1))
        if ran_s >= max(QUICK_S, 2 * back_off.coming_s):
            back_off.reset()
        return back_off.next_s()


class Restarts:
    """What one job starts again. ``plan``: what its user asked for."""

    def __init__(self, plan: JobPlan, now: float) -> None:
        self._plan = plan
        self.uses_multiworld = False
        """Whether any worker was seen to, since all were started together last."""
        self.not_before = now
        """When all workers may be started again together."""
        self.kept_by_kernel: set[Slot] = set()
        """Where a worker cannot be ended: so is the device, say, that another in its place would need."""
        self._ledger = RestartLedger()

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
        return RestartBudget() if self.are_of_all else DEFAULT_BUDGET

    def count(self, slot: Slot) -> int:
        return self._ledger.count(slot) + self._ledger.count(JOB)

    def num_left(self, slot: Slot, now: float) -> int:
        return self._ledger.num_left(self._key(slot), self._budget, now)

    def forget(self, slot: Slot) -> None:
        self._ledger.forget(slot)

    def take_over(self, slot: Slot, times: list[float]) -> None:
        """Count those that another coordinator has ordered."""
        self._ledger.restore(slot, times)

    def merge(self, posts: Posts) -> None:
        """All were always started again together."""
        self._ledger.merge(posts, JOB)

    def why_given_up(self, slot: Slot, worker: Post, now: float) -> str | None:
        """Return why a worker that has failed is not started again, or None if it may be."""
        if slot in self.kept_by_kernel:
            return f"rank {worker.rank} hangs in the kernel: nothing is started again"
        key, budget = self._key(slot), self._budget
        if self._ledger.allows(key, budget, now):
            return None
        who = "the job" if key == JOB else f"rank {worker.rank}"
        if not budget.max_restarts:
            return f"{who} may not be started again: {self._plan.more_restarts}"
        within = f" in {budget.per_s:g} s" if budget.per_s is not None else ""
        allowed = f"may be {_times(budget.max_restarts)}{within}"
        return f"{who} was started again {_times(self._ledger.count(key))}, and {allowed}: {self._plan.more_restarts}"

    def note(self, slot: Slot, worker: Post, now: float, *, is_fault_of_its_own: bool) -> float:
        """It is started again; returns in how long."""
        key = self._key(slot)
        self._ledger.note(key, now)
        delay_s = self._ledger.delay_s(key, now - worker.started_at) if is_fault_of_its_own else 0.0
        worker.not_before = self.not_before = now + delay_s
        return delay_s

    def others(self, slot: Slot, posts: Posts) -> list[Slot]:
        """Return the workers that are started again with it."""
        policy = self.policy
        running = [] if policy is RestartPolicy.WORKER else posts.alive()
        domain = fault_domain(policy, slot, {each: posts[each].worlds for each in (slot, *running)}, {slot, *running})
        return [each for each in running if each in domain]

    def _key(self, slot: Slot) -> Slot | str:
        """Return what a restart of the worker in that slot is counted for."""
        return JOB if self.are_of_all else slot


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

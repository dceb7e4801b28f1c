"""Decide what is started again after a failure, how often, and how soon. Pure: values and ``now``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from ...wire.backoff import BackOff
from .options import RestartBudget, RestartPolicy

__all__ = ["DEFAULT_BUDGET", "RestartLedger", "fault_domain"]

S = TypeVar("S", bound=Hashable)

DEFAULT_BUDGET = RestartBudget(max_restarts=3, per_s=600.0)
"""For programs that use multiworld, where nothing else is asked for."""
QUICK_S = 2.0  # who fails sooner after its start is likely to fail again
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0


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

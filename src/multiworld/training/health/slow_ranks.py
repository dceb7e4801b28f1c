"""Decide which members are slow, and in what, from the time that each one spent by itself. Pure.

An all-reduce makes the wall times of all members equal, so what is compared is each member's own time until it handed
its gradients over, for one micro-batch. Each step is one vote on each part (data, forward, ...) and on the whole: the
member needed ``factor`` times the median of the others in the same step, and lost ``share`` of a step by that. So what
slows the whole machine down cancels out, and a part that takes 1 % of a step may take twice as long. A member is slow
if ``least`` of the last ``window`` votes on one part are against it.

A vote does not say by how much: a stall of any length is one, and no deviation has to be estimated. If noise alone
gives a healthy member one vote in ten, ``least`` of ``window`` are against it with a probability of 4e-9; one in five:
1.5e-5. Recorded ranks had up to one in thirty. What is slow for some steps in a row, as other work took the core, stays
below ``least``, too.

What a member waited for a processor (``cpu wait``) is none of these parts: where processes outnumber the cores it is
longer than the work, and one has more of it for seconds. It is judged by ten times as many steps. Then a member is
named that shares its host with others as the rest do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median
from typing import Final

from .step_times import CPU_WAIT, WHOLE, Excess, Own, StepTimes

CPU_WAIT_WINDOWS: Final = 10


@dataclass(frozen=True, kw_only=True)
class SlowRankPolicy:
    """``factor``: how many times the median of the others is slow in a step, as a whole or in one part.

    ``share``: the least time that it costs then, as a share of a typical step of the others. Of the last ``window``
    steps ``least`` must be slow. A slow member has recovered, and may be reported anew, if of the last ``window`` steps
    no more than ``window - least`` are above the factor ``recovered``.
    """

    factor: float = 1.5
    share: float = 0.15
    window: int = 20
    least: int = 13
    recovered: float = 1.2

    def __post_init__(self) -> None:
        if not 1 < self.recovered <= self.factor:
            raise ValueError(f"1 < recovered <= factor is needed, not recovered={self.recovered}, factor={self.factor}")
        if not 1 <= self.least <= self.window:
            raise ValueError(f"1 <= least <= window is needed, not least={self.least}, window={self.window}")
        if self.share < 0:
            raise ValueError(f"share may not be negative: {self.share}")


@dataclass(frozen=True)
class Slow:
    """A member needs ``factor`` times as long as the others; most of it is lost in ``part``, ``part_factor`` times."""

    member: str
    factor: float
    part: str
    part_factor: float


@dataclass(frozen=True)
class Recovered:
    """A member that was reported as slow is as fast as the others again."""

    member: str


class SlowRanks:
    """Hears every step, and reports each slow member once until it has recovered, or is slow in another part."""

    def __init__(self, policy: SlowRankPolicy | None = None) -> None:
        self._policy = policy or SlowRankPolicy()
        self._votes: dict[tuple[str, str], deque[tuple[int, Excess]]] = {}  # by member and part; those against it
        self._slow: dict[str, _Reported] = {}
        self._members: set[str] = set()
        self._num_steps = 0

    def heard(self, owns: Mapping[str, Own]) -> list[Slow | Recovered]:
        """Take one step: what each member did, by its id. Those that computed nothing are not judged by it."""
        if self._members != owns.keys():
            self._forget(self._members - owns.keys())
            self._members = set(owns)
        times = StepTimes(owns)
        if len(times.members) < 2:
            return []
        self._num_steps += 1
        recovered = self._recovered(times)
        found = [self._report(member, parts, times) for member, parts in self._voted(times).items()]
        return [*recovered, *sorted(found, key=lambda slow: -slow.factor)]

    def _forget(self, gone: AbstractSet[str]) -> None:
        """Their places may be taken by other processes, which have a history of their own."""
        self._votes = {key: votes for key, votes in self._votes.items() if key[0] not in gone}
        self._slow = {member: reported for member, reported in self._slow.items() if member not in gone}

    def _voted(self, times: StepTimes) -> dict[str, list[str]]:
        """Take this step's votes. Return the parts in which members are slow now that were not before."""
        decided: dict[str, list[str]] = {}
        for part in (*times.parts, WHOLE, CPU_WAIT):
            windows = CPU_WAIT_WINDOWS if part == CPU_WAIT else 1
            for member, excess in times.above(part, self._policy.factor, self._policy.share):
                votes = self._votes.setdefault((member, part), deque())
                votes.append((self._num_steps, excess))
                while votes[0][0] <= self._num_steps - windows * self._policy.window:
                    votes.popleft()
                if len(votes) >= windows * self._policy.least and self._is_news(member, part):
                    decided.setdefault(member, []).append(part)
        return decided

    def _is_news(self, member: str, part: str) -> bool:
        """Return whether nobody was told that it is slow, or only of another part that is normal again."""
        reported = self._slow.get(member)
        if reported is None:
            return True
        if part in (WHOLE, CPU_WAIT, reported.part):
            return False
        since = self._num_steps - self._policy.window
        num_votes = sum(step > since for step, _ in self._votes.get((member, reported.part), ()))
        return num_votes <= self._policy.window - self._policy.least

    def _report(self, member: str, decided: list[str], times: StepTimes) -> Slow:
        """Name the part that cost most. It need not be the first one that was decided."""
        voted = [part for part in times.parts if (member, part) in self._votes]
        parts = decided if decided == [CPU_WAIT] else voted
        part = max(parts, key=lambda part: self._lost(member, part), default=WHOLE)
        windows = CPU_WAIT_WINDOWS if part == CPU_WAIT else 1
        self._slow[member] = _Reported(part, deque(maxlen=windows * self._policy.window))
        votes = [excess for _, excess in self._votes[member, part]]
        if part != WHOLE:
            return Slow(member, median(each.whole_ratio for each in votes), part, median(each.ratio for each in votes))
        return Slow(member, median(each.ratio for each in votes), *times.worst(member))

    def _lost(self, member: str, part: str) -> float:
        """Return how many usual steps a part cost in the window; a stall costs one at most."""
        since = self._num_steps - self._policy.window
        return sum(min(excess.lost, 1.0) for step, excess in self._votes[member, part] if step > since)

    def _recovered(self, times: StepTimes) -> list[Slow | Recovered]:
        found: list[Slow | Recovered] = []
        for member, reported in [*self._slow.items()]:
            excess = times.excess(reported.part, member)
            if excess is None:
                continue
            ratio = excess.whole_ratio if reported.part == CPU_WAIT else excess.ratio
            steps = reported.is_slow
            steps.append(ratio >= self._policy.recovered and excess.lost >= self._policy.share)
            allowed = 1 - self._policy.least / self._policy.window
            if len(steps) == steps.maxlen and sum(steps) <= allowed * len(steps):
                del self._slow[member]
                found.append(Recovered(member))
        return found


@dataclass(frozen=True)
class _Reported:
    """A slow member: in which part, and in which of the last steps it still was."""

    part: str
    is_slow: deque[bool]

"""Decide which members are slow, and in what, from the time that each one spent by itself. Pure.

An all-reduce makes the wall times of all members equal, so what is compared is each member's own time until it handed
its gradients over, divided by the micro-batches that it computed. A step gives one ratio for each member: its time to
the median time of the others in the same step, so what slows the whole machine down cancels out. A member is slow if
the trimmed mean of its last ``window`` ratios is large (``factor``), far above the noise (``certainty`` standard
errors, estimated from median absolute deviations), and large in each third of the window. Single stalls of any length
move none of these much, and a few steps that had to share a core are no third.

The same is done for each part (data, forward, ...), as far as the loss of time matters: a part that takes 1 % of a step
may take twice as long, and nobody is slow.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WAIT: Final = "wait"
"""The part of ``Facts.seconds`` that is no work of the member itself; it is left out."""
PER_STEP: Final = frozenset({"optimizer"})
"""Parts that are done once in a step, however many micro-batches a member has."""
_TO_SIGMA: Final = 1.4826  # of a median absolute deviation, for a normal distribution
_OF_TRIMMED: Final = (
    1.09  # standard error of the trimmed mean: so many times that of the mean, for a normal distribution
)
_TRIMMED: Final = 0.25  # at each end
_TINY_S: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class SlowRankPolicy:
    """``factor``: how much slower than the others, as a whole or in one part, is slow.

    ``share``: the least time that a slow part costs, as a share of a typical step of the others. ``window``: so many of
    the last steps are looked at, from ``least`` on, every ``every`` steps. ``recovered``: below this factor a slow
    member is normal again, and may be reported anew.
    """

    factor: float = 1.5
    share: float = 0.15
    certainty: float = 4.0
    window: int = 18
    least: int = 18
    every: int = 2
    recovered: float = 1.2

    def __post_init__(self) -> None:
        if not 1 < self.recovered <= self.factor:
            raise ValueError(f"1 < recovered <= factor is needed, not recovered={self.recovered}, factor={self.factor}")
        if not 1 <= self.least <= self.window or self.every < 1:
            raise ValueError(
                f"1 <= least <= window and every >= 1 are needed, not {self.least}, {self.window}, {self.every}"
            )
        if self.share < 0 or self.certainty < 0:
            raise ValueError(f"share and certainty may not be negative: {self.share}, {self.certainty}")


@dataclass(frozen=True)
class Own:
    """What one member did in one step: ``seconds`` by part, and how many micro-batches in that time."""

    seconds: Mapping[str, float]
    num_micro_batches: int


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
    """Hears every step, and reports each slow member once until it has recovered."""

    def __init__(self, policy: SlowRankPolicy | None = None) -> None:
        self._policy = policy or SlowRankPolicy()
        self._histories: dict[str, _History] = {}
        self._slow: set[str] = set()
        self._num_steps = 0

    def heard(self, owns: Mapping[str, Own]) -> list[Slow | Recovered]:
        """Take one step: what each member did, by its id. Those that computed nothing are not judged by it."""
        for gone in self._histories.keys() - owns.keys():
            del self._histories[gone]  # its place may be taken by another process, which has a history of its own
        self._slow &= owns.keys()
        costs = {member: cost for member, own in owns.items() if (cost := _cost(own)) is not None}
        if len(costs) < 2:
            return []
        wholes = {member: sum(cost.values()) for member, cost in costs.items()}
        in_order = sorted(wholes.values())
        for member, whole in wholes.items():
            history = self._histories.setdefault(member, _History(self._policy.window))
            history.add(_StepOf(member, costs, whole, _median_without(in_order, whole)))
        self._num_steps += 1
        return self._judge() if self._num_steps % self._policy.every == 0 else []

    def _judge(self) -> list[Slow | Recovered]:
        judged = {member: each for member, each in self._histories.items() if len(each) >= self._policy.least}
        if not judged:
            return []
        common = _median(sorted(history.deviation() for history in judged.values()))
        found: list[Slow] = []
        recovered: list[Recovered] = []
        for member, history in judged.items():
            slow = history.slow(member, self._policy, common)
            if member not in self._slow and slow is not None:
                found.append(slow)
            elif member in self._slow and history.is_normal(self._policy):
                recovered.append(Recovered(member))
        self._slow -= {each.member for each in recovered}
        self._slow |= {each.member for each in found}
        return [*recovered, *sorted(found, key=lambda slow: -slow.factor)]


@dataclass(frozen=True)
class _StepOf:
    """One step of one member. ``costs``: of all members, seconds for one micro-batch by part, as is ``whole``.

    ``usual``: the median of what the others needed as a whole.
    """

    member: str
    costs: Mapping[str, Mapping[str, float]]
    whole: float
    usual: float

    def ratio(self) -> float:
        return _log_ratio(self.whole, self.usual)

    def of_part(self, part: str) -> tuple[float, float]:
        """Return the logarithm of the ratio, and the time lost as a share of a usual step."""
        own = self.costs[self.member].get(part, 0.0)
        usual = _median(sorted(each.get(part, 0.0) for name, each in self.costs.items() if name != self.member))
        return _log_ratio(own, usual), (own - usual) / max(self.usual, _TINY_S)


class _History:
    """The last steps of one member, compared with the same steps of the others."""

    def __init__(self, window: int) -> None:
        self._steps: deque[_StepOf] = deque(maxlen=window)
        self._ratios: deque[float] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: _StepOf) -> None:
        self._steps.append(step)
        self._ratios.append(step.ratio())

    def deviation(self) -> float:
        return _deviation(self._ratios)

    def parts(self) -> Iterable[str]:
        last = self._steps[-1]
        return last.costs[last.member]

    def slow(self, member: str, policy: SlowRankPolicy, common: float) -> Slow | None:
        """Judge by the noise of this member, or by the usual one, ``common``, if that is greater."""
        whole = _trimmed_mean(self._ratios)
        if whole < math.log1p(policy.share) / 2:  # as nearly always, and cheap: no part can have lost so much
            return None
        worst = max((self._part(part) for part in self.parts()), key=lambda part: part.lost)
        limit = math.log(policy.factor)
        is_slow = whole >= limit and _is_certain(self._ratios, whole, common, policy)
        if not is_slow and worst.lost >= policy.share and worst.factor >= limit:
            is_slow = _is_certain(worst.ratios, worst.factor, common, policy) and _is_certain(
                worst.losses, worst.lost, 0.0, policy
            )
        return Slow(member, math.exp(whole), worst.name, math.exp(worst.factor)) if is_slow else None

    def is_normal(self, policy: SlowRankPolicy) -> bool:
        limit = math.log(policy.recovered)
        if _trimmed_mean(self._ratios) >= limit:
            return False
        parts = [self._part(part) for part in self.parts()]
        return all(part.factor < limit or part.lost < policy.share for part in parts)

    def _part(self, name: str) -> _Part:
        steps = [step.of_part(name) for step in self._steps]
        ratios, losses = [ratio for ratio, _ in steps], [lost for _, lost in steps]
        return _Part(name, ratios, losses, _trimmed_mean(ratios), _trimmed_mean(losses))


@dataclass(frozen=True)
class _Part:
    """One part over the window: ``factor`` is the logarithm of the typical ratio, ``lost`` a share of a usual step."""

    name: str
    ratios: Sequence[float]
    losses: Sequence[float]
    factor: float
    lost: float


def _is_certain(values: Iterable[float], middle: float, common: float, policy: SlowRankPolicy) -> bool:
    """Return whether the middle of the values is above zero beyond doubt, and no work of some bad steps.

    Other work that takes the core for a while makes a member slow in a third of the window, or in two.
    """
    kept = list(values)
    third = -(-len(kept) // 3)
    sigma = _TO_SIGMA * max(_deviation(kept), common)
    return middle >= policy.certainty * _OF_TRIMMED * sigma / math.sqrt(len(kept)) and all(
        _trimmed_mean(kept[start : start + third]) >= middle / 2 for start in range(0, len(kept), third)
    )


def _cost(own: Own) -> dict[str, float] | None:
    """Return the seconds that one micro-batch costs, by part; None if nothing was computed."""
    if own.num_micro_batches < 1:
        return None
    cost = {
        part: seconds if part in PER_STEP else seconds / own.num_micro_batches
        for part, seconds in own.seconds.items()
        if part != WAIT
    }
    return cost if sum(cost.values()) > _TINY_S else None


def _log_ratio(own: float, usual: float) -> float:
    return math.log(max(own, _TINY_S) / max(usual, _TINY_S))


def _trimmed_mean(values: Iterable[float]) -> float:
    in_order = sorted(values)
    cut = int(len(in_order) * _TRIMMED)
    kept = in_order[cut : len(in_order) - cut]
    return sum(kept) / len(kept)


def _deviation(values: Iterable[float]) -> float:
    """Return the median absolute deviation."""
    in_order = sorted(values)
    middle = _median(in_order)
    return _median(sorted(abs(value - middle) for value in in_order))


def _median(in_order: Sequence[float]) -> float:
    half, is_odd = divmod(len(in_order), 2)
    return in_order[half] if is_odd else (in_order[half - 1] + in_order[half]) / 2


def _median_without(in_order: Sequence[float], value: float) -> float:
    at = bisect_left(in_order, value)
    return _median([*in_order[:at], *in_order[at + 1 :]])

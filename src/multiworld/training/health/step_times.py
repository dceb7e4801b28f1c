"""Compare what members did in one step, part by part, each with the median of the others. Pure.

Times are for one micro-batch, so a member that computes more of them is not slower. Of a thousand members nearly all
are not above the median by much, and that is seen at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import add
from typing import Final, NamedTuple

WAIT: Final = "wait"
"""The part of ``Facts.seconds`` that is no work of the member itself; it is left out."""
CPU_WAIT: Final = "cpu wait"
"""What a member waited for a processor that others had. It is not in ``WHOLE``."""
WHOLE: Final = "whole"
PER_STEP: Final = frozenset({"optimizer"})
"""Parts that are done once in a step, however many micro-batches a member has."""
_TINY_S: Final = 1e-6
_LEAST_USUAL: Final = 0.01  # of a step: a part that the others hardly have is no thousand times as long


class Own(NamedTuple):
    """What one member did in one step: ``seconds`` by part, and how many micro-batches in that time."""

    seconds: Mapping[str, float]
    num_micro_batches: int


class Excess(NamedTuple):
    """By how much a member was above the others: in a part ``ratio`` times, as a whole ``whole_ratio`` times.

    ``lost``: by the part, as a share of what the others needed as a whole.
    """

    ratio: float
    whole_ratio: float
    lost: float


class StepTimes:
    """``owns``: by member. Those that computed nothing are left out. ``parts``: what may be asked for."""

    def __init__(self, owns: Mapping[str, Own]) -> None:
        members: list[str] = []
        seconds: list[Mapping[str, float]] = []
        scales: list[float] = []
        for member, (its, num_micro_batches) in owns.items():
            if num_micro_batches > 0 and sum(its.values()) - its.get(WAIT, 0.0) - its.get(CPU_WAIT, 0.0) > _TINY_S:
                members.append(member)
                seconds.append(its)
                scales.append(1 / num_micro_batches)
        self.members = members
        columns: dict[str, list[float]] = {}
        for part in dict.fromkeys(chain.from_iterable(seconds)):
            if part in PER_STEP:
                columns[part] = [each.get(part, 0.0) for each in seconds]
            elif part != WAIT:
                columns[part] = [each.get(part, 0.0) * scale for each, scale in zip(seconds, scales, strict=True)]
        waits = columns.pop(CPU_WAIT, None)
        self.parts = tuple(columns)
        columns[WHOLE] = list(map(sum, zip(*columns.values(), strict=True)))
        self._columns = {part: _Column(values) for part, values in columns.items()} if members else {}
        self._wholes = dict.fromkeys(columns, self._columns[WHOLE]) if members else {}
        if waits is not None and members:
            self._columns[CPU_WAIT] = _Column(waits)
            self._wholes[CPU_WAIT] = _Column(list(map(add, waits, columns[WHOLE])))

    def above(self, part: str, factor: float, share: float) -> list[tuple[str, Excess]]:
        """Return those that need more than ``factor`` times as long in ``part``, and lose ``share`` by it.

        With ``CPU_WAIT`` the factor is that of the whole with it.
        """
        column = self._columns.get(part)
        if column is None:
            return []
        wholes = self._wholes[part]
        compared, least = (wholes, 0.0) if part == CPU_WAIT else (column, column.low + share * wholes.low)
        # Who is not above it is not above his own, either: a little less, as rounding may put the two the other way.
        limit = max(compared.low * factor, least) * (1.0 - 1e-9)
        if compared.in_order[-1] <= limit:
            return []
        found = []
        for place, value in enumerate(compared.values):
            if value > limit and value > compared.usual(place) * factor:
                excess = self._excess(part, place)
                if excess.lost >= share:
                    found.append((self.members[place], excess))
        return found

    def excess(self, part: str, member: str) -> Excess | None:
        """None: it did nothing in this step."""
        if part not in self._columns or member not in self.members:
            return None
        return self._excess(part, self.members.index(member))

    def worst(self, member: str) -> tuple[str, float]:
        """Return the part in which it lost most, and how many times as long it took."""
        place = self.members.index(member)
        by_part = {part: self._excess(part, place) for part in self.parts}
        part = max(by_part, key=lambda part: by_part[part].lost)
        return part, by_part[part].ratio

    def _excess(self, part: str, place: int) -> Excess:
        column, wholes = self._columns[part], self._wholes[part]
        usual, usual_whole = column.usual(place), max(wholes.usual(place), _TINY_S)
        own, whole = column.values[place], wholes.values[place]
        return Excess(own / max(usual, _LEAST_USUAL * usual_whole), whole / usual_whole, (own - usual) / usual_whole)


class _Column:
    """One number of each member. ``low``: not above the median of the others of anybody who is above it."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values, self.in_order = values, sorted(values)
        self._half, self._is_odd = divmod(len(values), 2)
        self.low = (
            self.in_order[max(self._half - 1, 0)]
            if not self._is_odd
            else (self.in_order[max(self._half - 1, 0)] + self.in_order[self._half]) / 2
        )

    def usual(self, place: int) -> float:
        """Return the median without the one at ``place``."""
        in_order, half = self.in_order, self._half
        at = bisect_left(in_order, self.values[place])
        if not self._is_odd:
            return in_order[half - 1] if at >= half else in_order[half]
        return (in_order[half - 1 if at >= half else half] + in_order[half if at > half else half + 1]) / 2

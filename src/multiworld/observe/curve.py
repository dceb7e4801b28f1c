"""Few points of a long curve: every step at first, means of ever more steps later. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

MAX_POINTS = 400

CurvePoint = tuple[int, float]
"""A step and the mean of a value over the steps around it."""

CurveMean = tuple[int, float, int]
"""The last step of some, the mean of a value over them, and how many they are."""


class Curve:
    """At most ``max_points`` points, however many steps come. A step that comes again cuts off what was after it."""

    def __init__(
        self, max_points: int = MAX_POINTS, *, means: Sequence[CurveMean] = (), last: CurvePoint | None = None
    ) -> None:
        """``means`` and ``last``: of the curve that this one goes on with."""
        self._max_points = max(2, max_points)
        self._per_point = max((num for _, _, num in means), default=1)  # steps
        self._means = list(means)
        self.last = last

    @property
    def means(self) -> tuple[CurveMean, ...]:
        return tuple(self._means)

    @property
    def points(self) -> list[CurvePoint]:
        """The means, and the last value itself."""
        found = [(step, mean) for step, mean, _ in self._means]
        if self.last is not None and found and found[-1] != self.last:
            found.append(self.last)
        return found

    def add(self, step: int, value: float) -> None:
        """Take in a value; one that is not finite is left out."""
        while self._means and self._means[-1][0] >= step:
            self._means.pop()
        if not math.isfinite(value):
            return
        self.last = step, value
        if self._means and self._means[-1][2] < self._per_point:
            _, mean, num = self._means.pop()
            self._means.append((step, mean + (value - mean) / (num + 1), num + 1))
        else:
            self._means.append((step, value, 1))
        if len(self._means) > self._max_points:
            self._halve()

    def _halve(self) -> None:
        self._per_point *= 2
        pairs = [self._means[at : at + 2] for at in range(0, len(self._means), 2)]
        self._means = [_joined(pair) for pair in pairs]


def curve_of(values: Iterable[CurvePoint], max_points: int = MAX_POINTS) -> list[CurvePoint]:
    """Return the points of a curve."""
    curve = Curve(max_points)
    for step, value in values:
        curve.add(step, value)
    return curve.points


def _joined(points: list[CurveMean]) -> CurveMean:
    num = sum(each[2] for each in points)
    return points[-1][0], sum(mean * each_num for _, mean, each_num in points) / num, num

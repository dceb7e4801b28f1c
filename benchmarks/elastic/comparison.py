"""Try the same on several sides in turn, and make lines of a report: medians, ratios, and what must not happen."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs, median

from .job import TORCHRUN, Side, TrialFailed

__all__ = ["Comparison", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What one trial took, and how often something happened in it that must not, by name.

    ``more``: what else was timed in it, by the name of its line.
    """

    seconds: float
    wrong: Mapping[str, int] = field(default_factory=dict)
    more: Mapping[str, float] = field(default_factory=dict)


class Comparison:
    """Trials of ``name`` on each side, one after the other, so that what disturbs the machine disturbs all of them.

    A trial of torchrun that does not succeed counts as having taken ``cap_s``, which it was waited for.
    """

    def __init__(self, name: str, sides: Sequence[Side], *, cap_s: float) -> None:
        self.name, self.sides, self.cap_s = name, sides, cap_s
        self.seconds: dict[str, list[float]] = {side.name: [] for side in sides}
        self.wrong: dict[str, Counter[str]] = {side.name: Counter() for side in sides}
        self.failed: Counter[str] = Counter()
        self._more: dict[tuple[str, str], list[float]] = {}  # by the name of the line and of the side

    def run(self, trial: Callable[[Side], Outcome], alternations: int) -> None:
        for number in range(alternations):
            for side in self.sides:
                began = time.monotonic()
                try:
                    outcome = trial(side)
                except TrialFailed as error:
                    self.failed[side.name] += 1
                    outcome = Outcome(self.cap_s)
                    print(f"{self.name}: {error}", file=sys.stderr)
                self.seconds[side.name].append(outcome.seconds)
                self.wrong[side.name].update(outcome.wrong)
                for name, seconds in outcome.more.items():
                    self._more.setdefault((name, side.name), []).append(seconds)
                shown = ", ".join(f"{name}: {count}" for name, count in outcome.wrong.items() if count)
                print(
                    f"  {self.name}, {side.name} {number + 1}/{alternations}: {outcome.seconds:.2f} s {shown} "
                    f"(took {time.monotonic() - began:.0f} s)",
                    flush=True,
                )

    def lines(self, bounds: Mapping[str, Bound], more: Mapping[str, Bound] | None = None) -> list[Line]:
        """Return a line for each of our sides, and one for each thing that must not happen.

        ``bounds`` are by side; ``more`` has what else was timed, by the names of the lines, with the bounds for those.
        """
        ours = [side for side in self.sides if side.is_ours]
        found: list[Line] = []
        for side in ours:
            found.append(self._line(side, bounds.get(side.name)))
            wrong = {"trials that failed": self.failed[side.name], **self.wrong[side.name]}
            found += [
                Line(name=f"{self.name}, {side.name}: {what}", unit="", value=count, bound=Bound.at_most(0))
                for what, count in wrong.items()
            ]
        for name, bound in (more or {}).items():
            found += [
                _alone(f"{name}, {side.name}", self._more.get((name, side.name)) or [self.cap_s], bound)
                for side in ours
            ]
        return found

    def _line(self, side: Side, bound: Bound | None) -> Line:
        name, ours = f"{self.name}, {side.name}", self.seconds[side.name]
        if TORCHRUN.name not in self.seconds:
            return _alone(name, ours, bound)
        pairs = Pairs(ours, self.seconds[TORCHRUN.name])
        return Line.of_pairs(name, "s", pairs, bound, _extremes(ours), self._their_failures())

    def _their_failures(self) -> str:
        theirs = {"did not recover": self.failed[TORCHRUN.name], **self.wrong[TORCHRUN.name]}
        num = len(self.seconds[TORCHRUN.name])
        parts = [
            f"{count} of {num} {what} within {self.cap_s:g} s" if what == "did not recover" else f"{what}: {count}"
            for what, count in theirs.items()
            if count
        ]
        return f"torchrun: {'; '.join(parts)}" if parts else ""


def _alone(name: str, seconds: Sequence[float], bound: Bound | None) -> Line:
    """Return the line of what torchrun has no counterpart of."""
    return Line(name=name, unit="s", value=median(seconds), bound=bound, details=_extremes(seconds))


def _extremes(seconds: Sequence[float]) -> dict[str, float]:
    return {"best": min(seconds), "worst": max(seconds)}

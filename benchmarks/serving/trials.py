"""Repeats a scenario on several sides in turn, and makes lines of a report of what was found."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs

from ..side import Side, SideFailed
from .sides import OURS

__all__ = ["COUNTS", "Trials"]

COUNTS = ("lost", "duplicated", "wrong")
NOT_JUDGED = "without Ray Serve, its bound is not judged"


class Trials:
    """One scenario: what each side found, by the name of the side, in the order of the rounds.

    ``peer``: the side whose figures stand beside ours, if it is among the sides. A round in which it failed, or gave
    NaN, has no figure of it; one in which ours failed counts as failed.
    """

    def __init__(self, name: str, scenario: str, sides: Sequence[Side], *, peer: str = "", timeout_s: float) -> None:
        self.name, self.sides, self.timeout_s = name, sides, timeout_s
        self._scenario, self._peer = scenario, peer
        self.rounds: list[dict[str, dict[str, float]]] = []
        self.failures: dict[str, int] = dict.fromkeys((side.name for side in sides), 0)

    def run(self, options: Mapping[str, Any], rounds: int, *, peer_options: Mapping[str, Any] | None = None) -> None:
        """``peer_options``: what sides other than ours are to do otherwise."""
        for number in range(rounds):
            found: dict[str, dict[str, float]] = {}
            for side in self.sides:
                began = time.monotonic()
                asked = options if side.name == OURS.name else {**options, **(peer_options or {})}
                try:
                    found[side.name] = side.run(self._scenario, {**asked, "round": number}, self.timeout_s)
                except SideFailed as error:
                    self.failures[side.name] += 1
                    print(f"  {self.name}: {error}", file=sys.stderr, flush=True)
                shown = ", ".join(f"{key} {value:.3g}" for key, value in found.get(side.name, {}).items())
                spent_s = time.monotonic() - began
                print(f"  {self.name}, {side.name} {number + 1}/{rounds} ({spent_s:.0f} s): {shown}", flush=True)
            self.rounds.append({name: _kept(name, figures) for name, figures in found.items()})

    def values(self, key: str, side: str = OURS.name) -> list[float]:
        return [found[side][key] for found in self.rounds if key in found.get(side, {})]

    def line(
        self,
        what: str,
        key: str,
        unit: str,
        bound: Bound | None = None,
        *,
        scale: float = 1.0,
        peer: str | None = None,
        reduce: Callable[[Sequence[float]], float] = median,
        others: Sequence[str] = (),
    ) -> Line:
        """Return the line of one figure, beside the peer's if that has it. ``others``: sides of which it tells too.

        ``reduce``: what is made of the rounds, where it stands alone; the median, or the worst.
        """
        peer = self._peer if peer is None else peer
        name = f"{self.name}: {what}"
        ours = [value * scale for value in self.values(key)]
        if not ours:
            return Line.not_measured(name, "no round of ours succeeded")
        details = {"best": min(ours), "worst": max(ours)} if len(ours) > 1 else {}
        for other in others:
            if theirs := self.values(key, other):
                details[other] = median(theirs) * scale
        pairs = [
            (found[OURS.name][key] * scale, found[peer][key] * scale)
            for found in self.rounds
            if key in found.get(OURS.name, {}) and key in found.get(peer, {})
        ]
        if pairs and all(theirs for _, theirs in pairs):
            return Line.of_pairs(name, unit, Pairs.of(pairs), bound, details)
        reference = median([theirs for _, theirs in pairs]) if pairs else None
        if bound is not None and bound.of != "value":
            return Line(name=name, unit=unit, value=reduce(ours), details=details, note=NOT_JUDGED)
        return Line(name=name, unit=unit, value=reduce(ours), reference=reference, bound=bound, details=details)

    def counts(self, keys: Sequence[str] = COUNTS) -> list[Line]:
        """Return a line for each thing that must not happen, over all rounds, and one for rounds that failed."""
        lines = []
        for key in keys:
            theirs = self.values(key, self._peer)
            lines.append(
                Line(
                    name=f"{self.name}: {key}",
                    unit="",
                    value=sum(self.values(key)),
                    reference=sum(theirs) if theirs else None,
                    bound=Bound.at_most(0),
                    details={"requests": sum(self.values("requests"))} if self.values("requests") else {},
                )
            )
        theirs_failed = self.failures.get(self._peer)
        failed = self.failures[OURS.name]
        name = f"{self.name}: runs that failed or hung"
        return [*lines, Line(name=name, unit="", value=failed, reference=theirs_failed, bound=Bound.at_most(0))]


def _kept(side: str, figures: dict[str, float]) -> dict[str, float]:
    """Return what counts of a side's figures: what a peer could not answer is no figure, what we could not is one."""
    return figures if side == OURS.name else {key: value for key, value in figures.items() if not math.isnan(value)}

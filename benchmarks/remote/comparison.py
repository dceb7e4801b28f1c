"""Runs ours and its peers in turn, each in processes of its own, and makes a line for each pair."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs, median

from ..side import Side, SideFailed
from .sides import Missing

__all__ = ["Comparison"]

ROUND_S = 300.0


class Comparison:
    """One scenario: the figures of each side, by its name, in the order of the rounds."""

    def __init__(self, scenario: str, ours: Side, peers: Sequence[Side | Missing]) -> None:
        self._scenario, self._ours, self._peers = scenario, ours, peers
        self._rounds: list[dict[str, dict[str, float]]] = []
        self._failures: dict[str, str] = {}

    def run(self, options: Mapping[str, float], rounds: int) -> None:
        """A round has each side once. A side that fails has no figures in that round."""
        for number in range(rounds):
            found: dict[str, dict[str, float]] = {}
            for side in [self._ours, *(peer for peer in self._peers if isinstance(peer, Side))]:
                began = time.monotonic()
                try:
                    found[side.name] = side.run(self._scenario, options, ROUND_S)
                except SideFailed as error:
                    self._failures[side.name] = str(error)
                    print(f"  {error}", file=sys.stderr, flush=True)
                shown = ", ".join(f"{key} {value:.3g}" for key, value in found.get(side.name, {}).items())
                spent_s = time.monotonic() - began
                print(f"  {self._scenario}, {side.name} {number + 1}/{rounds} ({spent_s:.0f} s): {shown}", flush=True)
            self._rounds.append(found)

    def alone(self, what: str, key: str, unit: str, bound: Bound | None = None, *, scale: float = 1.0) -> Line:
        """Return the median of ours, with its range."""
        values = [value * scale for value in self._values(self._ours.name, key)]
        if not values:
            return Line.not_measured(what, self._why(self._ours.name))
        return Line(name=what, unit=unit, value=median(values), bound=bound, details=_range("", values))

    def beside(
        self,
        what: str,
        key: str,
        unit: str,
        bounds: Mapping[str, Bound] | None = None,
        *,
        scale: float = 1.0,
        peers: Sequence[str] | None = None,
    ) -> list[Line]:
        """Return a line for each peer, or those that are named. ``bounds``: by the peer's name."""
        wanted = [peer for peer in self._peers if peers is None or peer.name in peers]
        return [self._pair(what, key, unit, peer, (bounds or {}).get(peer.name), scale) for peer in wanted]

    def _pair(self, what: str, key: str, unit: str, peer: Side | Missing, bound: Bound | None, scale: float) -> Line:
        name = f"{what}, beside {peer.name}"
        if isinstance(peer, Missing):
            return Line.not_measured(name, peer.reason)
        if not (known := self._values(peer.name, key)):
            return Line.not_measured(name, self._why(peer.name))
        if not self._values(self._ours.name, key):
            note = f"not measured: {self._why(self._ours.name)}"
            return Line(name=name, unit=unit, value=None, reference=median(known) * scale, note=note)
        pairs = [
            (found[self._ours.name][key] * scale, found[peer.name][key] * scale)
            for found in self._rounds
            if key in found.get(self._ours.name, {}) and key in found.get(peer.name, {})
        ]
        ours, theirs = zip(*pairs, strict=True) if pairs else ((), ())
        if not pairs:
            return Line.not_measured(name, "no round in which both succeeded")
        details = {**_range("ours ", ours), **_range("theirs ", theirs)}
        if any(math.isnan(each) or not each for each in theirs):  # no ratio to what never happened
            return Line(name=name, unit=unit, value=median(ours), reference=median(theirs), details=details)
        return Line.of_pairs(name, unit, Pairs.of(pairs), bound, details)

    def _values(self, side: str, key: str) -> list[float]:
        return [found[side][key] for found in self._rounds if key in found.get(side, {})]

    def _why(self, side: str) -> str:
        return f"no round of {side} has it: {self._failures.get(side, 'the side does not tell')}"


def _range(of: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{of}lowest": min(values), f"{of}highest": max(values)}

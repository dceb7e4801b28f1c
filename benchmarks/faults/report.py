"""Collect what was measured, print p50, p99 and maximum beside what was promised, and say whether it holds.

``python -m benchmarks.faults.report FILE...`` does so for what several runs with ``--json`` have measured, together.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Report", "arguments", "quantile", "together"]


def arguments(description: str, *, trials: int, backend: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options that all commands share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--trials", type=int, default=trials, help=f"how often (default {trials})")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    if backend:
        parser.add_argument("--backend", default="tcp", help="the channel of the worlds (default tcp)")
    return parser


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that is not below ``share`` of all (nearest rank); of no samples, NaN."""
    if not samples:
        return math.nan
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


@dataclass
class _Latency:
    """Samples in seconds, of which the ``judged`` one must not exceed ``limit_s``."""

    limit_s: float
    judged: Literal["p99", "max"]
    samples: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        return {
            "n": len(self.samples),
            "p50": quantile(self.samples, 0.5),
            "p99": quantile(self.samples, 0.99),
            "max": quantile(self.samples, 1.0),
        }

    @property
    def holds(self) -> bool:
        return self.figures()[self.judged] <= self.limit_s


@dataclass
class _Count:
    """Something that must have happened exactly ``expected`` times."""

    expected: int
    found: int = 0

    @property
    def holds(self) -> bool:
        return self.found == self.expected


class Report:
    """The figures of one command."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._latencies: dict[str, _Latency] = {}
        self._counts: dict[str, _Count] = {}

    def latency(self, name: str, seconds: float, *, limit_s: float, judged: Literal["p99", "max"] = "max") -> None:
        """Add a sample of a latency whose p99 or maximum has a limit."""
        self._latencies.setdefault(name, _Latency(limit_s, judged)).samples.append(seconds)

    def count(self, name: str, number: int, *, expected: int = 0, more_expected: int = 0) -> None:
        """Add to something that must come out at ``expected`` in the end, and at so many more for each of these."""
        count = self._counts.setdefault(name, _Count(expected))
        count.found += number
        count.expected += more_expected

    @property
    def holds(self) -> bool:
        return all(latency.holds for latency in self._latencies.values()) and all(
            count.holds for count in self._counts.values()
        )

    def finish(self, json_file: Path | None = None) -> int:
        """Print everything, write it if wanted, and return the exit status."""
        print(f"\n{self.title}  ({platform.node()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})")
        for name, latency in self._latencies.items():
            figures = latency.figures()
            shown = "  ".join(f"{label} {figures[label] * 1000:8.1f} ms" for label in ("p50", "p99", "max"))
            promise = f"{latency.judged} ≤ {latency.limit_s * 1000:g} ms"
            print(f"  {name:<60} n {figures['n']:5.0f}  {shown}  {promise:<16} {_verdict(latency.holds)}")
        for name, count in self._counts.items():
            print(f"  {name:<60} {count.found} (must be {count.expected})  {_verdict(count.holds)}")
        if json_file is not None:
            json_file.write_text(json.dumps(self._to_dict(), indent=2) + "\n")
        sys.stdout.flush()
        return 0 if self.holds else 1

    def _to_dict(self) -> dict[str, object]:
        latencies = {
            name: {**latency.figures(), **asdict(latency), "holds": latency.holds}
            for name, latency in self._latencies.items()
        }
        counts = {name: {**asdict(count), "holds": count.holds} for name, count in self._counts.items()}
        return {"title": self.title, "holds": self.holds, "latencies": latencies, "counts": counts}


def together(runs: Sequence[Mapping[str, Any]]) -> Report:
    """Return one report of what several have written. What had to happen so often in each had to in all."""
    report = Report(f"{runs[0]['title']}, and {len(runs) - 1} runs more" if len(runs) > 1 else runs[0]["title"])
    for run in runs:
        for name, latency in run["latencies"].items():
            for sample in latency["samples"]:
                report.latency(name, sample, limit_s=latency["limit_s"], judged=latency["judged"])
        for name, count in run["counts"].items():
            report.count(name, count["found"], more_expected=count["expected"])
    return report


def _verdict(holds: bool) -> str:
    return "ok" if holds else "VIOLATED"


if __name__ == "__main__":
    sys.exit(together([json.loads(Path(name).read_text()) for name in sys.argv[1:]]).finish())

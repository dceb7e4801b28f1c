"""What a run of the benchmark found: lines, grouped by benchmark, their bounds, and whether these may fail a run."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from typing import Any, Literal

from ..process.facts import cpu_model
from .samples import Pairs, median

TIME_UNITS = ("s", "ms", "µs")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A limit on a line's value, its ratio to the reference, or its difference from that (in the line's unit)."""

    at: Literal["least", "most"]
    limit: float
    of: Literal["value", "ratio", "difference"] = "value"

    @classmethod
    def ratio_at_least(cls, limit: float) -> Bound:
        return cls(at="least", limit=limit, of="ratio")

    @classmethod
    def ratio_at_most(cls, limit: float) -> Bound:
        return cls(at="most", limit=limit, of="ratio")

    @classmethod
    def above_reference_at_most(cls, limit: float) -> Bound:
        return cls(at="most", limit=limit, of="difference")

    @classmethod
    def at_most(cls, limit: float) -> Bound:
        return cls(at="most", limit=limit)

    def holds(self, figure: float) -> bool:
        return figure >= self.limit if self.at == "least" else figure <= self.limit

    def gates(self, unit: str) -> bool:
        """Whether breaking it may fail a run: ratios and counts may, times may not, for they are the machine's too."""
        return self.of == "ratio" or (self.of == "value" and unit not in (*TIME_UNITS, "% of a core"))

    def text(self, unit: str) -> str:
        """Return it as a table shows it: ``≥ 0.95×``, ``≤ +40 µs``, ``≤ 20 ms``."""
        sign = "≥" if self.at == "least" else "≤"
        if self.of == "ratio":
            return f"{sign} {self.limit:g}×"
        plus = "+" if self.of == "difference" else ""
        return f"{sign} {plus}{self.limit:g} {unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Line:
    """One measured figure. ``reference``, ``ratio`` and ``difference`` are None where raw Gloo has no counterpart.

    ``value`` is None where it could not be measured; the note says why.
    """

    name: str
    unit: str
    value: float | None
    reference: float | None = None
    ratio: float | None = None
    ratio_quartiles: tuple[float, float] | None = None
    difference: float | None = None
    bound: Bound | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of_pairs(
        cls,
        name: str,
        unit: str,
        pairs: Pairs,
        bound: Bound | None = None,
        details: Mapping[str, float] | None = None,
        note: str = "",
    ) -> Line:
        """Report samples that alternated with the reference's, by their medians."""
        return cls(
            name=name,
            unit=unit,
            value=median(pairs.ours),
            reference=median(pairs.reference),
            ratio=pairs.ratio,
            ratio_quartiles=pairs.ratio_quartiles,
            difference=pairs.difference,
            bound=bound,
            details=details or {},
            note=note,
        )

    @classmethod
    def not_measured(cls, name: str, reason: str) -> Line:
        """Report that there is no figure, and why."""
        return cls(name=name, unit="", value=None, note=f"not measured: {reason}")

    @property
    def holds(self) -> bool | None:
        """Whether the figure is within its bound; None without one."""
        if self.bound is None:
            return None
        figure = {"value": self.value, "ratio": self.ratio, "difference": self.difference}[self.bound.of]
        assert figure is not None, f"{self.name}: a bound on the {self.bound.of}, but no reference"
        return self.bound.holds(figure)

    @property
    def gates(self) -> bool:
        return self.bound is not None and self.bound.gates(self.unit)

    def as_json(self) -> dict[str, Any]:
        bound = None if self.bound is None else {**asdict(self.bound), "gates": self.gates, "holds": self.holds}
        return {**asdict(self), "bound": bound}


@dataclass(frozen=True, kw_only=True)
class Section:
    """The lines of one benchmark. ``about`` says what was done; ``took_s`` how long the benchmark ran.

    ``reference``: what the figures stand beside.
    """

    name: str
    about: str
    took_s: float
    lines: Sequence[Line]
    reference: str = "raw Gloo"

    def as_json(self) -> dict[str, Any]:
        lines = [line.as_json() for line in self.lines]
        return {"name": self.name, "about": self.about, "took_s": self.took_s, "lines": lines}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole run."""

    machine: Machine
    quick: bool
    sections: Sequence[Section]

    @property
    def failures(self) -> list[Line]:
        """The lines outside their bounds."""
        return [line for section in self.sections for line in section.lines if line.holds is False]

    @property
    def missing(self) -> list[Line]:
        """The lines that could not be measured."""
        return [line for section in self.sections for line in section.lines if line.value is None]

    @property
    def passes(self) -> bool:
        """Whether every bound that may fail a run holds."""
        return not any(line.gates for line in self.failures)

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": asdict(self.machine),
            "quick": self.quick,
            "passes": self.passes,
            "sections": [section.as_json() for section in self.sections],
        }


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This machine at one moment. ``load_average``: runnable threads over the last 1, 5 and 15 minutes."""

    date: str
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    torch: str
    multiworld: str
    load_average: tuple[float, float, float]

    def as_text(self) -> str:
        load = ", ".join(f"{value:.2f}" for value in self.load_average)
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gb:.0f} GB; Linux {self.kernel}; Python {self.python}, "
            f"torch {self.torch}, multiworld {self.multiworld}; load average {load}"
        )


def describe_machine() -> Machine:
    """Look at this machine now, before anything is measured: the load average is that of the others."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        cpu=cpu_model() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=pages * page_bytes / 1e9,
        kernel=platform.release(),
        python=platform.python_version(),
        torch=metadata.version("torch"),
        multiworld=metadata.version("multiworld"),
        load_average=os.getloadavg(),
    )

"""Decide whether a measured figure is within what was promised, and whether that may fail a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Bound", "Subject"]

Subject = Literal["value", "ratio", "difference"]
TIME_UNITS = ("s", "ms", "µs")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A limit on a line's value, its ratio to the reference, or its difference from that (in the line's unit)."""

    at: Literal["least", "most"]
    limit: float
    of: Subject = "value"

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

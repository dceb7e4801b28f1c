"""Failures replayed at the rates that Oobleck's authors published: ours beside Oobleck, row by row."""

from __future__ import annotations

from multiworld.bench.report import Bound, Line
from multiworld.training.simulating.compared import Row, rows

__all__ = ["simulate"]


def simulate() -> list[Line]:
    """Replay each trace for each model; Oobleck's row is made of its own constants by the same rules as ours.

    What is printed is by other rules, so ours is replayed by those, too.
    """
    table = list(rows())
    by_their_rules = [row.over_as_printed for row in table]
    printed = [row.over_published for row in table]
    nothing_kept = [row.nothing_kept.samples_per_s / row.published.oobleck for row in table]
    return [
        *(_row(row) for row in table),
        Line(
            name="rows behind what the simulator of Oobleck's authors prints, ours by its rules",
            unit="",
            value=float(sum(each < 1.0 for each in by_their_rules)),
            bound=Bound.at_most(0),
            details={"least": min(by_their_rules)},
        ),
        Line(
            name="rows behind what the simulator of Oobleck's authors prints, ours by the rules here",
            unit="",
            value=float(sum(each < 1.0 for each in printed)),
            details={"least": min(printed), "if the whole step was done again, least": min(nothing_kept)},
            note="it counts steps that end in recoveries: decision 041",
        ),
    ]


def _row(row: Row) -> Line:
    return Line(
        name=f"{row.trace.name}, {row.model.name}",
        unit="samples/s",
        value=row.ours.samples_per_s,
        reference=row.oobleck.samples_per_s,
        ratio=row.over_oobleck,
        bound=Bound.ratio_at_least(1.0),
        details={"Oobleck as printed": row.published.oobleck, "Varuna": row.published.varuna},
    )

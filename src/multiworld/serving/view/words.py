"""Say numbers and moments of a deployment in a few characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..page.snapshot import Shown

BARS = "▁▂▃▄▅▆▇█"
MARKS = {"bad": "▲", "warn": "◆", "good": "●", "calm": "■"}
"""By tone; they differ by shape, for who sees no colors and for logs."""


def rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.1f}/s"


def seconds(value: float | None) -> str:
    if not value:
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.{0 if value >= 0.1 else 1}f} ms"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


def megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} MB"


def clock(at: float) -> str:
    """Return the local time of a moment in Unix time."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar for each value, the highest one full; a blank where none is known."""
    top = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else BARS[min(int(value / top * len(BARS)), len(BARS) - 1) if top > 0 else 0]
        for value in values
    )


def condition(shown: Shown) -> tuple[str, str]:
    """Return how the whole deployment stands: the tone, and a sentence."""
    if shown.silent:
        return "warn", f"the controller does not answer ({shown.silent.why}); requests go on without it"
    last = f"; the last: {shown.failure.error}".splitlines()[0] if shown.failure else ""
    return shown.condition.tone, shown.condition.text + last


def summary(shown: Shown) -> str:
    """Return the deployment on one line."""
    totals = shown.totals
    stages = " ".join(f"{each.name} {each.open}/{each.desired}" for each in shown.stages)
    return (
        f"{rate(totals.rate)}, p50 {seconds(totals.p50_s)}, p99 {seconds(totals.p99_s)}, "
        f"{totals.open} open, {totals.answered:,} answered, {totals.failed} failed, "
        f"{totals.refused} refused; {stages}; {condition(shown)[1]}"
    )

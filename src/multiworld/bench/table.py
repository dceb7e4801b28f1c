"""Set a report as a table that reads on a terminal and in Markdown alike, and add it to the file of all runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from .report import Line, Report, Section

HEADINGS = ("ratio (middle half)", "bound", "", "also")
MEASUREMENT = "measurement"
RIGHT_ALIGNED = {1, 2, 3}
TITLE = """# Results of `multiworld bench`

Newest last. Each figure stands beside raw `torch.distributed` Gloo, measured in the same run and alternating with it;
the ratio is the median over the pairs, with the middle half of them in brackets. Only ratios and counts compare across
machines.
"""


def report_text(report: Report) -> str:
    """Return all sections below one another, and a last line that says what failed."""
    texts = [section_text(section) for section in report.sections]
    return "\n\n".join([*texts, verdict_text(report)]) + "\n"


def section_text(section: Section) -> str:
    """Return a heading, what was done, and the table of one benchmark."""
    rows = [(MEASUREMENT, "ours", section.reference, *HEADINGS), *map(_row, section.lines)]
    head = f"### {section.name}\n\n{section.about} Took {section.took_s:.0f} s."
    return f"{head}\n\n{_table(rows)}"


def format_figure(value: float, unit: str = "") -> str:
    """Return three significant digits, without an exponent unless it is tiny, and the unit; "none" for NaN."""
    if not math.isfinite(value):
        return "none" if math.isnan(value) else f"{value:g} {unit}".rstrip()
    magnitude = abs(value)
    if 0 < magnitude < 0.001:
        return f"{value:.2e} {unit}".rstrip()
    decimals = 0 if magnitude >= 100 or value == int(value) else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    return f"{value:,.{decimals}f} {unit}".rstrip()


def _row(line: Line) -> tuple[str, ...]:
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    if line.ratio_quartiles is not None:
        low, high = line.ratio_quartiles
        ratio += f" ({low:.2f}–{high:.2f})"
    return (
        line.name,
        "" if line.value is None else format_figure(line.value, line.unit),
        "" if line.reference is None else format_figure(line.reference, line.unit),
        ratio,
        "" if line.bound is None else line.bound.text(line.unit),
        {True: "ok", False: "FAIL", None: ""}[line.holds],
        _also(line),
    )


def _also(line: Line) -> str:
    parts = [f"{name} {format_figure(value)}" for name, value in line.details.items()]
    if line.bound is not None and line.bound.of == "difference" and line.difference is not None:
        parts.insert(0, f"{'+' if line.difference >= 0 else '−'}{format_figure(abs(line.difference), line.unit)}")
    if line.note:
        parts.append(line.note)
    return ", ".join(parts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    columns = [column for column in range(len(rows[0])) if column == 0 or any(row[column] for row in rows[1:])]
    widths = {column: max(3, *(len(row[column]) for row in rows)) for column in columns}
    lines = ["| " + " | ".join(_cell(row[column], column, widths) for column in columns) + " |" for row in rows]
    rule = ("-" * (widths[column] + 1) + (":" if column in RIGHT_ALIGNED else "-") for column in columns)
    lines.insert(1, "|" + "|".join(rule) + "|")
    return "\n".join(lines)


def _cell(text: str, column: int, widths: dict[int, int]) -> str:
    return text.rjust(widths[column]) if column in RIGHT_ALIGNED else text.ljust(widths[column])


def verdict_text(report: Report) -> str:
    """Return a line that says what failed."""
    missing = f" Not measured: {len(report.missing)}." if report.missing else ""
    failed = report.failures
    if not failed:
        return f"Every figure is within its bound.{missing}"
    gating = sum(line.gates for line in failed)
    names = "; ".join(line.name for line in failed)
    return (
        f"Outside their bounds: {len(failed)} ({names}), of which {gating} by a ratio or a count, which fail --check."
        f"{missing}"
    )


def append_record(path: Path, report: Report) -> None:
    """Add the run at the end of the file, which is begun if there is none."""
    with path.open("a", encoding="utf-8") as file:  # what was recorded before is safe where there is no room for this
        begin = "" if os.fstat(file.fileno()).st_size else TITLE
        file.write(f"{begin}\n{record_text(report)}")


def record_text(report: Report) -> str:
    """Return the run as a Markdown section."""
    quick = " (quick: too short to rely on)" if report.quick else ""
    return f"## {report.machine.date}{quick}\n\n{report.machine.as_text()}.\n\n{report_text(report)}"

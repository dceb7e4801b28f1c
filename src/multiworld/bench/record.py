"""Append a run to the file that keeps all of them, under its date and its machine."""

from __future__ import annotations

import os
from pathlib import Path

from .report import Report
from .table import report_text

__all__ = ["append_record", "record_text"]

TITLE = """# Results of `multiworld bench`

Newest last. Each figure stands beside raw `torch.distributed` Gloo, measured in the same run and alternating with it;
the ratio is the median over the pairs, with the middle half of them in brackets. Only ratios and counts compare across
machines.
"""


def append_record(path: Path, report: Report) -> None:
    """Add the run at the end of the file, which is begun if there is none."""
    with path.open("a", encoding="utf-8") as file:  # what was recorded before is safe where there is no room for this
        begin = "" if os.fstat(file.fileno()).st_size else TITLE
        file.write(f"{begin}\n{record_text(report)}")


def record_text(report: Report) -> str:
    """Return the run as a Markdown section."""
    quick = " (quick: too short to rely on)" if report.quick else ""
    return f"## {report.machine.date}{quick}\n\n{report.machine.as_text()}.\n\n{report_text(report)}"

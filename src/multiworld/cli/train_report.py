"""``multiworld train report``: what happened in a training, from the record that its processes wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..command_parser import CommandParser
from ..training.view.folder import NoRecordError, RunRecord, read_record
from ..training.view.picture import picture
from ..training.view.report import TrainingReport, report_json, reports_of
from ..training.view.report_text import report_text
from .cluster import clock, told

REPORT = "multiworld train report"
EPILOG = """\
FOLDER is what training.join(..., record=FOLDER) was given, or the --log-dir of the launcher, whose newest run is taken.
The report may be made while the training runs. Hosts write their own files: collect them in one folder first.

Goodput is the time of committed first-try work, divided by the wall time. The causes of the rest add up with it to the
wall time: start, failures (detection, agreement, forming worlds, transfer, and when nobody ran), redo (micro-batches
that were computed again), rollback (steps that were lost with all replicas), checkpoint, data wait, slow rank, and what
the program does outside steps.

Exit status: 0, 1 if there is no record, 2 for a command that makes no sense."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report: 0, or 1 if there is no record, or the picture cannot be written."""
    options = command_parser().parse_args(arguments)

    def work() -> None:
        record = read_record(options.folder)
        reports = [each for each in reports_of(record.events) if options.name in (None, each.job)]
        if not reports:
            raise NoRecordError(record.folder, f"there is no training {options.name!r} in it")
        for note in notes(record):
            print(f"{REPORT}: {note}", file=sys.stderr)
        if options.svg is not None:
            _write(options.svg, reports)
        if options.json:
            print(json.dumps([report_json(each) for each in reports], indent=2))
        elif options.svg != "-":
            print("\n\n".join(report_text(each, clock) for each in reports))

    return told("train report", work, NoRecordError)


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog=REPORT,
        description="Explain a training: steps, failures with their causes, timelines of the recoveries, goodput, "
        "slow ranks.",
        epilog=EPILOG,
    )
    parser.add_argument("folder", metavar="FOLDER", help="with the record")
    parser.add_argument("--name", help="which training, if there are several in the record")
    parser.add_argument("--json", action="store_true", help="print JSON: a list with an object for each training")
    parser.add_argument(
        "--svg", metavar="FILE", help="draw the loss, the faults and the recoveries; -: to standard output"
    )
    return parser


def notes(record: RunRecord) -> list[str]:
    """Return what a reader of the report must know of the record, one sentence each."""
    found = []
    if record.num_damaged:
        found.append(f"{record.num_damaged} damaged or unknown lines of {record.folder} were left out")
    return found


def _write(where: str, reports: Sequence[TrainingReport]) -> None:
    if where == "-":
        print(picture(reports[0], clock), end="")
        return
    for number, report in enumerate(reports):
        path = Path(where)
        if number:
            path = path.with_stem(f"{path.stem}-{number}")
        try:
            path.write_text(picture(report, clock), encoding="utf-8")
        except OSError as error:
            raise NoRecordError(str(path), f"the picture cannot be written: {error.strerror}") from error

"""Measure what serving promises, beside Ray Serve in the same run. Exits with 1 if a bound was missed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from multiworld.bench.machine import describe_machine
from multiworld.bench.record import append_record
from multiworld.bench.report import Line, Report, Section
from multiworld.bench.table import report_text

from .lines import BESIDE, LINES, NOT_ALTERNATED
from .sides import RAY_TUNED

RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def main() -> int:
    options = _arguments()
    machine = describe_machine()
    sections = [_measure(name, options) for name in options.only or LINES]
    report = Report(machine=machine, quick=options.alternations < 5, sections=sections)
    print(f"\n{report_text(report)}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1))
    if options.record:
        append_record(RESULTS, report)
    return 1 if report.failures or report.missing else 0


def _measure(name: str, options: argparse.Namespace) -> Section:
    about, measure = LINES[name]
    began = time.monotonic()
    print(f"{name}: {about}", flush=True)
    try:
        lines = measure(options)
    except Exception as error:  # what cannot be measured fails, and the other lines are measured all the same
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        lines = [Line.not_measured(name, f"{type(error).__name__}: {error}")]
    times = "" if name in NOT_ALTERNATED else f"; {options.alternations} times on each side, in turn"
    return Section(
        name=f"serving: {name}",
        about=f"{about[0].upper()}{about[1:]}{times}.",
        took_s=time.monotonic() - began,
        lines=lines,
        reference=BESIDE.get(name, RAY_TUNED),
    )


def _arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<9} {about}" for name, (about, _) in LINES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description=__doc__,
        epilog=f"lines:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=LINES, metavar="LINE", help="this line; may be repeated")
    parser.add_argument("--alternations", type=int, default=5, metavar="N", help="of every comparison (default 5)")
    peer = "the interpreter that has Ray Serve (default: RAY_PYTHON; without one nothing stands beside ours)"
    parser.add_argument("--ray", default=os.environ.get("RAY_PYTHON"), metavar="PYTHON", help=peer)
    parser.add_argument("--record", action="store_true", help=f"append the figures to {RESULTS.name}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each loop of requests (default 3)")
    parser.add_argument("--kills", type=int, default=100, help="of one of two replicas (default 100)")
    parser.add_argument("--overload-s", type=float, default=20.0, help="how long it lasts (default 20)")
    parser.add_argument("--soak-minutes", type=float, default=30.0, help="how long it lasts (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of whatever is random (default 0)")
    options = parser.parse_args()
    if options.alternations < 1 or options.kills < 1:
        parser.error("--alternations and --kills: expected at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

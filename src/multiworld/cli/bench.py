"""``multiworld bench``: measure beside raw ``torch.distributed``. Imports torch only to look at a ``--backend``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..bench.options import Options
from ..bench.report import Report
from ..bench.run import BENCHMARKS, load, run
from ..bench.table import append_record, report_text
from ..command_parser import CommandParser
from ..process.interruption import unwinding
from ..testing import WorkerFailedError
from .checks import check_backend, check_output, note_uncompiled, tell_unwritten, write_output
from .streams import OutputError

RESULTS = Path("benchmarks/RESULTS.md")
STDOUT = Path("-")
QUICK_ROUNDS = 2
QUICK_TRIALS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure: 0 if that worked, 1 if a bound that --check holds to is broken or a file was not written, 2 if it cannot
    run here."""
    parser = command_parser()
    parsed = parser.parse_args(arguments)
    unknown = [name for name in parsed.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}: there are {', '.join(BENCHMARKS)}")
    for option, path in (("--json", parsed.json), ("--record", parsed.record)):
        if path is not None and path != STDOUT:
            check_output(parser, option, path)
    try:
        options = _options(parsed)
    except ValueError as error:
        parser.error(str(error))
    if find_spec("torch") is None:
        print("multiworld bench needs torch", file=sys.stderr)
        return 2
    note_uncompiled("bench")
    try:
        for backend in options.backends:
            check_backend(backend)
    except ValueError as error:
        parser.error(f"--backend: {error}")
    names = parsed.names or list(BENCHMARKS)
    load(names)
    try:
        with unwinding():
            report = run(names, options, _note)
    except WorkerFailedError as error:
        print(f"multiworld bench: worker {error.worker!r} {error.reason}", file=sys.stderr)
        return 2
    is_written = _write(report, parsed.json, parsed.record)
    status = 1 if not is_written or (parsed.check and not report.passes) else 0
    try:
        _show(report, as_json=parsed.json == STDOUT)
    except OutputError as error:
        error.status_unread = status
        raise
    return status


def _options(parsed: argparse.Namespace) -> Options:
    rounds, trials = (QUICK_ROUNDS, QUICK_TRIALS) if parsed.quick else (Options.rounds, Options.trials)
    return Options(
        quick=parsed.quick,
        rounds=rounds if parsed.rounds is None else parsed.rounds,
        trials=trials if parsed.trials is None else parsed.trials,
        backends=Options.backends if parsed.backend is None else tuple(parsed.backend),
    )


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(report: Report, json_path: Path | None, record_path: Path | None) -> bool:
    """Write the report to the files that are wanted, and return whether all of them were written."""
    is_written = True
    if json_path is not None and json_path != STDOUT:
        is_written = write_output("multiworld bench: --json", json_path, json.dumps(report.as_json(), indent=2))
    if record_path is not None:
        try:
            append_record(record_path, report)
        except OSError as error:
            tell_unwritten("multiworld bench: --record", record_path, error)
            is_written = False
    return is_written


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_json(), indent=2), flush=True)
    else:
        print(f"{report.machine.as_text()}\n\n{report_text(report)}", end="", flush=True)


def command_parser() -> CommandParser:
    width = max(map(len, BENCHMARKS))
    listing = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in BENCHMARKS.items())
    parser = CommandParser(
        prog="multiworld bench",
        description="Measure the channels beside raw torch.distributed Gloo: in the same run, alternating with it.",
        epilog=f"benchmarks (default: all):\n{listing}\n\nExit status: 0 after measuring, 1 if --check fails or a "
        "file was not written, 2 if it cannot run here, 130 after Ctrl-C.",
    )
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help="what to measure, of those listed below")
    parser.add_argument(
        "--quick", action="store_true", help="short slices and few rounds: shows that it works, no more"
    )
    parser.add_argument("--rounds", type=int, help="alternations of each comparison (default: 9; quick: 2)")
    parser.add_argument("--trials", type=int, help="faults of each kind in detect (default: 30; quick: 3)")
    parser.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help="channel to measure, may be repeated (default: tcp and gloo; of channels: shm)",
    )
    parser.add_argument(
        "--check", action="store_true", help="fail if a ratio or a count is outside its bound; times never fail"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything to FILE too; - for standard output alone"
    )
    parser.add_argument(
        "--record", type=Path, nargs="?", const=RESULTS, metavar="FILE", help=f"append to FILE (default: {RESULTS})"
    )
    return parser

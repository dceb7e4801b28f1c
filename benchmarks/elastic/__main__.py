"""Measure what the launcher promises, beside torchrun in the same run. Exits with 1 if a bound was missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from multiworld.bench.machine import describe_machine
from multiworld.bench.record import append_record
from multiworld.bench.report import Line, Report, Section
from multiworld.bench.table import report_text

from . import hosts, one_host
from .crowd import crowd
from .cut import cut
from .etcd import etcd
from .soak import soak

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
LINES: dict[str, tuple[str, Callable[[argparse.Namespace], list[Line]]]] = {
    "launch": ("launch of 1x4 until the first all_reduce", lambda o: one_host.launch(o.alternations, o.cap_s)),
    "kill": ("one worker of 1x4 killed", lambda o: one_host.kill(o.alternations, o.cap_s)),
    "stop": ("one worker of 1x4 stopped", lambda o: one_host.stop(o.alternations, o.cap_s)),
    "node": ("one of two hosts killed, elastic 1:2", lambda o: hosts.node_killed(o.alternations, o.cap_s)),
    "replace": ("one of two hosts killed and replaced", lambda o: hosts.node_replaced(o.alternations, o.cap_s)),
    "store": ("the coordinator's host killed, of three", lambda o: hosts.store_killed(o.alternations, o.cap_s)),
    "agent": ("one of two agents killed alone", lambda o: hosts.agent_killed(o.alternations, o.cap_s)),
    "restarts": ("a random worker killed again and again", lambda o: one_host.restarts(o.restarts)),
    "cut": ("a host cut off from the others (needs root)", lambda o: cut(o.alternations)),
    "etcd": ("etcd killed under two agents of two workers, and started again", lambda o: etcd(o.etcd_away_s)),
    "soak": ("random kills, three agents of two workers", lambda o: soak(o.kills, o.minutes, o.seed)),
    "crowd": ("a hundred simulated agents and five hundred worlds", lambda o: crowd(o.alternations)),
}
NOT_REPEATED = ("restarts", "etcd", "soak")


def main() -> int:
    options = _arguments()
    machine = describe_machine()
    sections = [_measure(name, options) for name in options.only or LINES]
    report = Report(machine=machine, quick=options.alternations < 5, sections=sections)
    print(f"\n{report_text(report)}", flush=True)
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
    return Section(
        name=f"elastic: {name}",
        about=f"{about[0].upper()}{about[1:]}{_times(name, options)}.",
        took_s=time.monotonic() - began,
        lines=lines,
        reference="torchrun",
    )


def _times(name: str, options: argparse.Namespace) -> str:
    return "" if name in NOT_REPEATED else f"; {options.alternations} times on each side, in turn"


def _arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<9} {about}" for name, (about, _) in LINES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description=__doc__,
        epilog=f"lines:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--alternations", type=int, default=5, metavar="N", help="of every comparison (default 5)")
    parser.add_argument("--only", action="append", choices=LINES, metavar="NAME", help="this line; may be repeated")
    parser.add_argument("--record", action="store_true", help=f"append the figures to {RESULTS.name}")
    parser.add_argument("--cap-s", type=float, default=60.0, help="how long torchrun is waited for (default 60)")
    parser.add_argument("--restarts", type=int, default=100, help="restarts in a row (default 100)")
    parser.add_argument("--etcd-away-s", type=float, default=20.0, help="until etcd is started again (default 20)")
    parser.add_argument("--kills", type=int, default=200, help="of the soak (default 200)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the soak (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the soak (default 0)")
    options = parser.parse_args()
    if options.alternations < 1:
        parser.error(f"--alternations {options.alternations}: expected at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

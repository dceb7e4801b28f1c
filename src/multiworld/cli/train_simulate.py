"""``multiworld train simulate``: replay failures over a model's profile, or Oobleck's published setting."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..command_parser import CommandParser
from .planning_options import (
    add_planning_options,
    planning_of,
    positive_count,
    positive_number,
    read_text,
    told,
    write_picture,
)

if TYPE_CHECKING:
    from ..training.simulating.compared import Row
    from ..training.simulating.replay import System
    from ..training.simulating.trace import Trace
    from ..training.view.simulated_picture import Panel

SIMULATE = "multiworld train simulate"
MAX_TRACE_BYTES = 1 << 26
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?")
UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EPILOG = """\
examples:
  multiworld train simulate gpt2.json --nodes 16 --every 30min --for 24h --back-after 1h
  multiworld train simulate --layers 48 --trace spot.csv --svg spot.svg
  multiworld train simulate --published
  multiworld train simulate --published --only GCP --only "GPT-3 6.7b"

A trace has lines TIME,join|loss,NODE in seconds; add and remove are understood, too. Nodes that are there at first join
at time 0. --every draws a trace: exponential times between losses of random nodes.

One row replays what the training does: at each change it takes the policy with which most steps are expected until the
next one. The other rows always take one policy where it is possible, or restart from a checkpoint at each change.

--published is the setting of Oobleck's paper (SOSP'23): five models, 30 nodes, a loss every 6 h to 10 min until 16
nodes are left, and spot instances of GCP and EC2. The rates are those that its authors published.

Exit status: 0, 2 for what cannot be simulated, with the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of it: 0, or 2 for what makes no sense."""
    options = command_parser().parse_args(arguments)

    def work() -> None:
        if options.only and not options.published:
            raise ValueError("--only chooses rows of --published")
        if options.published:
            _published(options)
        else:
            _planned(options)

    return told(SIMULATE, work)


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog=SIMULATE,
        description="Replay failures over a training, by arithmetic: samples a second, and where the time goes.",
        epilog=EPILOG,
    )
    add_planning_options(parser)
    parser.add_argument("--trace", metavar="FILE", help="which nodes join and are lost when")
    parser.add_argument("--trace-unit", choices=["s", "ms"], default="s", help="of its times (default: s)")
    parser.add_argument("--every", type=_duration, metavar="TIME", help="instead of --trace: mean time between losses")
    parser.add_argument("--for", type=_duration, metavar="TIME", dest="for_s", help="with --every: for how long (1d)")
    parser.add_argument("--back-after", type=_duration, metavar="TIME", help="with --every: a lost node is there again")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="with --every: of the losses (default: 0)")
    parser.add_argument("--recovery", type=_duration, metavar="TIME", default=1.0, help="without moving state (1s)")
    parser.add_argument(
        "--gbit-s", type=positive_number, metavar="G", default=10.0, help="network of each node (default: 10)"
    )
    parser.add_argument("--restart", type=_duration, metavar="TIME", default=60.0, help="from a checkpoint (60s)")
    parser.add_argument(
        "--checkpoint-every", type=positive_count, metavar="N", default=100, help="steps (default: 100)"
    )
    parser.add_argument("--published", action="store_true", help="the published setting of Oobleck, beside Oobleck")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="of --published: a trace, or a model; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", metavar="FILE", help="draw samples a second over time; -: to standard output")
    return parser


def _planned(options: argparse.Namespace) -> None:
    from ..training.planning.installed import check_installed

    check_installed()
    from ..training.planning.changes.conditions import Conditions
    from ..training.planning.scheduling import may_split
    from ..training.simulating.planned import POLICIES, Planned, Restarted
    from ..training.simulating.replay import replay
    from ..training.view.simulated import replayed_json, replayed_text
    from ..training.view.simulated_picture import Panel, simulated_picture

    trace = _trace(options)
    options.nodes = trace.most_nodes
    planning = planning_of(options)
    templates = planning.templates()
    conditions = Conditions(
        tolerate=planning.tolerate,
        num_micro_batches=planning.num_micro_batches,
        expected_s=trace.mean_s,
        bytes_per_s=options.gbit_s * 1e9 / 8,
        form_s=options.recovery,
        split_backward=may_split(planning.schedule, planning.profile),
    )
    systems: list[System] = [
        *(Planned(templates, conditions, policy=policy, restore_s=options.restart) for policy in (None, *POLICIES)),
        Restarted(templates, conditions, restart_s=options.restart),
    ]
    found = [replay(trace, each, checkpoint_every=options.checkpoint_every) for each in systems]
    if options.svg is not None:
        write_picture(options.svg, simulated_picture([Panel(title=trace.name, found=found)]))
    if options.json:
        print(json.dumps([replayed_json(each) for each in found], indent=2))
    elif options.svg != "-":
        print(replayed_text(trace, found))


def _trace(options: argparse.Namespace) -> Trace:
    """Return the trace that is read or drawn. Raises ValueError, TraceError."""
    from ..training.simulating.trace import drawn_trace, read_trace
    from ..training.view.words import duration

    if (options.trace is None) == (options.every is None):
        raise ValueError("which failures? Give --trace FILE, or --every TIME (or --published)")
    if options.trace is not None:
        given = {"--nodes": options.nodes, "--for": options.for_s, "--back-after": options.back_after}
        if extra := [name for name, value in given.items() if value is not None]:
            raise ValueError(
                f"{extra[0]} belongs to --every: the trace {options.trace} says which nodes there are when"
            )
        unit_s = UNITS_S[options.trace_unit]
        return read_trace(options.trace, read_text(options.trace, MAX_TRACE_BYTES), unit_s=unit_s)
    if options.nodes is None:
        raise ValueError("--nodes is missing: how many nodes are there?")
    return drawn_trace(
        f"a loss every {duration(options.every)}",
        [f"node{number}" for number in range(options.nodes)],
        mean_s=options.every,
        end_s=UNITS_S["d"] if options.for_s is None else options.for_s,
        uniform=random.Random(options.seed).random,
        back_after_s=options.back_after,
    )


def _duration(text: str) -> float:
    matched = DURATION.fullmatch(text.strip())
    seconds = float(matched[1]) * UNITS_S[matched[2] or "s"] if matched else 0.0
    if not 0.0 < seconds < 1e10:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 90s, 10min, 1.5h or 2d")
    return seconds


def _published(options: argparse.Namespace) -> None:
    from ..training.view.simulated import published_json, published_text
    from ..training.view.simulated_picture import simulated_picture

    if options.profile is not None or options.layers is not None or options.nodes is not None:
        raise ValueError("--published has models and nodes of its own: give it, or a model")
    rows = _rows(options.only)
    if options.svg is not None:
        write_picture(options.svg, simulated_picture([_panel(row) for row in rows]))
    if options.json:
        print(json.dumps(published_json(rows), indent=2))
    elif options.svg != "-":
        print(published_text(rows))


def _rows(only: Sequence[str]) -> list[Row]:
    """Return the rows of these traces and models, by name. Raises ValueError for others."""
    from ..training.simulating.compared import rows
    from ..training.simulating.published import MODELS
    from ..training.simulating.published_traces import TRACES

    models = [each.name for each in MODELS]
    for name in only:
        if name not in TRACES and name not in models:
            raise ValueError(f"--only {name!r}: expected one of {', '.join((*TRACES, *models))}")
    return list(rows([each for each in only if each in TRACES], [each for each in only if each in models]))


def _panel(row: Row) -> Panel:
    from ..training.view.simulated_picture import Panel

    means = [
        (f"{name} as printed", mean)
        for name, mean in (("Oobleck", row.published.oobleck), ("Varuna", row.published.varuna))
        if mean > 0
    ]
    return Panel(title=f"{row.trace.name}, {row.model.name}", found=[row.ours, row.oobleck], means=means)

"""Measure what remote tensors promise, beside their peers in the same run. Exits with 1 if a bound was missed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from multiworld.bench.report import Line

from ..suite import Suite
from . import (
    between,
    cut,
    faults,
    fuzz,
    language_models,
    opinfo,
    overlap,
    recovery,
    replays,
    sizes,
    stream_programs,
    training,
)
from .lines import copies, killed, operations, round_trips
from .sides import INSTALL

COMPARED: dict[str, tuple[str, Callable[[argparse.Namespace], list[Line]]]] = {
    "operations": ("a chain of additions of 20 × 20, with one wait at the end", operations),
    "round-trip": ("a small operation and a fetch of its result", round_trips),
    "kill": ("one of four nodes killed, while the others add", killed),
    "copies": ("64 MB sent and fetched, and small round trips meanwhile", copies),
}
ALONE: dict[str, tuple[str, Callable[[argparse.Namespace], list[Line]]]] = {
    "opinfo": (
        "every sample that PyTorch has for its operators, float32 on the CPU, against the same here",
        opinfo.line,
    ),
    "fuzz": ("random programs of views, in-place operators and out=, against the same programs here", fuzz.line),
    "streams": ("random programs with events on 3 streams, against the same steps one by one", stream_programs.line),
    "overlap": ("computing on one stream while 64 MB are copied on another (needs 2 idle cores)", overlap.line),
    "exact": ("5 models × 8 optimizers × 50 steps against local CPU", training.exact),
    "steps": ("1,000 training steps without .item()", training.steps),
    "sizes": ("tensors of 3 GB, of 0 elements, of 12 dimensions, 10,000 in a list", sizes.line),
    "models": ("a GPT-2 and a BERT on remote:1: forward, backward, generate", language_models.line),
    "stop": ("one of four nodes stopped", faults.stopped),
    "cut": ("one of four nodes on hosts of their own cut off (needs root)", cut.cut_off),
    "failed": ("one failed operation, 1,000 dependents", faults.failed),
    "replay": ("a captured step of 38 operations against the same step here", replays.line),
    "recovery": ("a training whose node is killed at random points, and made anew each time", recovery.line),
    "soak": ("additions on two nodes, one of which is killed again and again", faults.soak),
}
BESIDE_A_WORLD: dict[str, tuple[str, Callable[[argparse.Namespace], list[Line]]]] = {
    "between": ("64 MB from node to node, beside the same between two members of a world", between.copied),
    "all-reduce": ("tensors of four nodes reduced, beside a world's; and with a member that dies", between.all_reduced),
}
LINES = {**COMPARED, **BESIDE_A_WORLD, **ALONE}
SUITE = Suite(name="remote", lines=LINES, reference="the peer", not_alternated=tuple(ALONE))


def _arguments() -> argparse.Namespace:
    parser = SUITE.parser(__doc__)
    parser.epilog = f"{parser.epilog}\n\n{INSTALL}"
    named = "the interpreter that has {} (default: {}_PYTHON; without one the table names it as missing)"
    for name, package in (("ray", "Ray"), ("monarch", "Monarch")):
        variable = f"{name.upper()}_PYTHON"
        about = named.format(package, name.upper())
        parser.add_argument(f"--{name}", default=os.environ.get(variable), metavar="PYTHON", help=about)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each loop of additions (default 3)")
    parser.add_argument("--round-trips", type=int, default=300, help="of each side in each turn (default 300)")
    parser.add_argument("--programs", type=int, default=10_000, help="of the lines fuzz and streams (default 10,000)")
    parser.add_argument("--operations", type=int, default=10_000_000, help="of the soak (default 10,000,000)")
    parser.add_argument("--kills", type=int, default=100, help="of the line recovery (default 100)")
    parser.add_argument("--kill-every-s", type=float, default=30.0, help="in the soak (default 30)")
    options = parser.parse_args()
    if options.alternations < 1 or options.round_trips < 2 or options.kills < 1:
        parser.error("--alternations and --kills: expected at least 1; --round-trips: at least 2")
    return options


if __name__ == "__main__":
    sys.exit(SUITE.run(_arguments()))

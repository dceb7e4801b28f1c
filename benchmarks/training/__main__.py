"""Measure what resilient training promises, beside its peers in the same run. Exits with 1 if a bound was missed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from multiworld.bench.report import Line

from ..suite import Suite
from .kills import kills
from .overhead import checkpoints, overhead

LINES: dict[str, tuple[str, Callable[[argparse.Namespace], list[Line]]]] = {
    "overhead": ("steps while nothing fails, beside plain DDP", lambda o: overhead(o.alternations, o.steps)),
    "kill": ("one of four replicas killed in each phase", lambda o: kills(o.alternations, o.kills, o.seed)),
    "save": ("a checkpoint every 20 steps", lambda o: checkpoints(o.alternations, o.steps)),
}
SUITE = Suite(name="training", lines=LINES, reference="plain DDP on gloo")


def _arguments() -> argparse.Namespace:
    parser = SUITE.parser(__doc__)
    parser.add_argument("--steps", type=int, default=200, help="of a training without failures (default 200)")
    parser.add_argument("--kills", type=int, default=100, help="in all (default 100)")
    parser.add_argument("--quick", action="store_true", help="one alternation, 14 kills, 60 steps: not to be believed")
    options = parser.parse_args()
    if options.alternations < 1:
        parser.error(f"--alternations {options.alternations}: expected at least 1")
    if options.quick:
        options.alternations, options.kills, options.steps = 1, 14, 60
    return options


if __name__ == "__main__":
    sys.exit(SUITE.run(_arguments()))

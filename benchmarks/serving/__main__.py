"""Measure what serving promises, beside Ray Serve in the same run. Exits with 1 if a bound was missed."""

from __future__ import annotations

import argparse
import os
import sys

from ..suite import Suite
from .lines import BESIDE, LINES, NOT_ALTERNATED
from .sides import RAY_TUNED

SUITE = Suite(name="serving", lines=LINES, reference=RAY_TUNED, other_references=BESIDE, not_alternated=NOT_ALTERNATED)


def _arguments() -> argparse.Namespace:
    parser = SUITE.parser(__doc__)
    peer = "the interpreter that has Ray Serve (default: RAY_PYTHON; without one nothing stands beside ours)"
    parser.add_argument("--ray", default=os.environ.get("RAY_PYTHON"), metavar="PYTHON", help=peer)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each loop of requests (default 3)")
    parser.add_argument("--kills", type=int, default=100, help="of one of two replicas (default 100)")
    parser.add_argument("--overload-s", type=float, default=20.0, help="how long it lasts (default 20)")
    parser.add_argument("--soak-minutes", type=float, default=30.0, help="how long it lasts (default 30)")
    options = parser.parse_args()
    if options.alternations < 1 or options.kills < 1:
        parser.error("--alternations and --kills: expected at least 1")
    return options


if __name__ == "__main__":
    sys.exit(SUITE.run(_arguments()))

"""Measure what the launcher promises, beside torchrun in the same run. Exits with 1 if a bound was missed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from multiworld.bench.report import Line

from ..suite import Suite
from . import hosts, one_host
from .crowd import crowd
from .cut import cut
from .decision import decision
from .etcd import etcd
from .soak import soak

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
    "decision": ("one of a thousand simulated hosts lost and replaced", lambda o: decision(o.alternations)),
    "crowd": ("a hundred simulated agents and five hundred worlds", lambda o: crowd(o.alternations)),
}
NOT_REPEATED = ("restarts", "etcd", "soak", "decision")
SUITE = Suite(name="elastic", lines=LINES, reference="torchrun", not_alternated=NOT_REPEATED)


def _arguments() -> argparse.Namespace:
    parser = SUITE.parser(__doc__)
    parser.add_argument("--cap-s", type=float, default=60.0, help="how long torchrun is waited for (default 60)")
    parser.add_argument("--restarts", type=int, default=100, help="restarts in a row (default 100)")
    parser.add_argument("--etcd-away-s", type=float, default=20.0, help="until etcd is started again (default 20)")
    parser.add_argument("--kills", type=int, default=200, help="of the soak (default 200)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the soak (default 10)")
    options = parser.parse_args()
    if options.alternations < 1:
        parser.error(f"--alternations {options.alternations}: expected at least 1")
    return options


if __name__ == "__main__":
    sys.exit(SUITE.run(_arguments()))

"""The lines in which remote tensors stand beside peers, and what must hold of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from multiworld.bench.report import Bound, Line

from ..side import Side
from . import sides
from .comparison import Comparison
from .sides import Peer, find_peers

__all__ = ["copies", "killed", "operations", "round_trips"]

US, MS = 1e6, 1e3
LIMIT_S = 40.0
RPC = (sides.RPC_SHM, sides.RPC_TCP, sides.RPC_REF)
RAY = (sides.RAY_ACTOR, sides.RAY_REF)
MONARCH = (sides.MONARCH_ENGINE, sides.MONARCH_ACTOR)


def operations(options: argparse.Namespace) -> list[Line]:
    found = _compare("operations", sides.OURS, (*RPC, *RAY, *MONARCH), options, seconds=options.seconds)
    bounds = {
        **dict.fromkeys(_names(RPC), Bound.ratio_at_least(8)),
        **dict.fromkeys(_names(RAY), Bound.ratio_at_least(20)),
        sides.MONARCH_ENGINE.name: Bound.ratio_at_least(50),
    }
    return [
        found.alone("additions in a second", "rate", "/s", Bound(at="least", limit=80_000)),
        *found.beside("additions in a second", "rate", "/s", bounds),
        *found.beside("the master's CPU for each", "cpu_us", "µs"),
    ]


def round_trips(options: argparse.Namespace) -> list[Line]:
    found = _compare("round_trip", sides.OURS, (*RPC, *RAY, *MONARCH), options, times=options.round_trips)
    bounds = dict.fromkeys(_names(RPC), Bound.ratio_at_most(0.333))
    return [
        *found.beside("an addition and a fetch, p50", "two_p50_s", "µs", bounds, scale=US),
        *found.beside("an addition and a fetch, p99", "two_p99_s", "µs", scale=US),
        *found.beside("both in one call of a function, p50", "one_p50_s", "µs", scale=US),
    ]


def killed(options: argparse.Namespace) -> list[Line]:
    peers = (*MONARCH, sides.RPC_SHM, sides.RAY_ACTOR)
    found = _compare("kill", sides.OURS, peers, options, seconds=options.seconds, limit_s=LIMIT_S)
    return [
        found.alone("until the error", "error_s", "ms", Bound.at_most(100), scale=MS),
        *found.beside(f"until the error, at most {LIMIT_S:g} s", "error_s", "ms", scale=MS),
        found.alone("nodes with a wrong sum", "wrong", "", Bound.at_most(0)),
        found.alone("throughput of the others after 1 s, over before", "throughput", "", Bound(at="least", limit=0.95)),
        *found.beside("throughput of the others after 1 s, over before", "throughput", ""),
        *found.beside("until the others answered", "answered_s", "ms", scale=MS),
    ]


def copies(options: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    for ours, peer, times in ((sides.OURS_TCP, sides.RPC_TCP, 1.0), (sides.OURS_SHM, sides.RPC_SHM, 1.5)):
        found = _compare("copies", ours, (peer,), options, times=5, seconds=options.seconds)
        bounds = {peer.name: Bound.ratio_at_least(times)}
        lines += found.beside(f"64 MB sent, {ours.name}", "send", "GB/s", bounds)
        lines += found.beside(f"64 MB fetched, {ours.name}", "fetch", "GB/s", bounds)
        what = f"a small round trip meanwhile, {ours.name}"
        lines.append(found.alone(what, "p50_s", "ms", Bound.at_most(1), scale=MS))
        lines.append(found.alone(f"{what}, p99", "p99_s", "ms", scale=MS))
        lines += found.beside(what, "p50_s", "ms", scale=MS)
    return lines


def _compare(
    scenario: str, ours: Side, peers: Sequence[Peer], options: argparse.Namespace, **settings: float
) -> Comparison:
    interpreters = {"torch": sys.executable, "ray": options.ray, "monarch": options.monarch}
    comparison = Comparison(scenario, ours, find_peers(peers, interpreters))
    comparison.run(settings, options.alternations)
    return comparison


def _names(peers: Sequence[Peer]) -> list[str]:
    return [peer.name for peer in peers]

"""What the coordinator of a thousand simulated hosts does when one is lost, and another comes in its place."""

from __future__ import annotations

import gc
import logging

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median

from .simulated_cluster import SimulatedCluster

__all__ = ["decision"]

DECISION_MS, BYTES = 20.0, 2e6
FEW, MANY = 100, 1000


def decision(alternations: int) -> list[Line]:
    """A decision: all that one turn of the coordinator's loop does for one thing that was heard, or that is due.

    That is to decode it, to decide, and to pack what is sent in this turn. Counted in time of the thread.
    """
    logging.getLogger("multiworld.elastic").setLevel(logging.CRITICAL)
    lines: list[Line] = []
    for num_hosts in (FEW, MANY):
        cluster = SimulatedCluster(num_hosts)
        cluster.start()
        gc.collect()
        gc.freeze()  # the other agents are in this process, and the coordinator's collector would look at them
        longest_ms, total_ms, sent = [], [], []
        for _ in range(alternations):
            cluster.forget()
            turns = cluster.lose_and_replace()
            longest_ms.append(1e3 * max(turn.cpu_s for turn in turns))
            total_ms.append(1e3 * sum(turn.cpu_s for turn in turns))
            sent.append(float(sum(cluster.num_bytes.values())))
        cluster.check()
        gc.unfreeze()
        lost = f"one of {num_hosts} hosts lost and replaced"
        lines += [
            _line(f"{lost}: the longest decision", "ms of processor time", longest_ms, DECISION_MS),
            _line(f"{lost}: all decisions", "ms of processor time", total_ms, None),
            _line(f"{lost}: all messages", "bytes", sent, BYTES),
        ]
    return lines


def _line(name: str, unit: str, values: list[float], bound: float | None) -> Line:
    return Line(
        name=name,
        unit=unit,
        value=median(values),
        bound=None if bound is None else Bound.at_most(bound),
        details={"best": min(values), "worst": max(values)},
    )

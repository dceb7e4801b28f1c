"""What the coordinator of a thousand simulated hosts does when hosts come, are lost, replaced, drained or scaled."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Callable
from typing import NamedTuple

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median
from multiworld.elastic.job.options import RestartPolicy

from .simulated_cluster import SimulatedCluster, Turn

__all__ = ["decision"]

DECISION_MS, BYTES = 20.0, 2e6
FEW, MANY, SOME = 100, 1000, 100
ALL, WORKER = RestartPolicy.ALL, RestartPolicy.WORKER


class Event(NamedTuple):
    """What happens to a cluster, again and again."""

    what: str
    happens: Callable[[SimulatedCluster], list[Turn]]
    max_bytes: float | None = None


def decision(alternations: int) -> list[Line]:
    """A decision: all that one turn of the coordinator's loop does for one thing that was heard, or that is due.

    That is to decode it, to decide, and to pack what is sent in this turn. Counted in time of the thread.
    """
    logging.getLogger("multiworld.elastic").setLevel(logging.CRITICAL)
    replaced = Event("one is lost and replaced", SimulatedCluster.lose_and_replace, BYTES)
    whole = [
        Event(f"{SOME} are lost and replaced", lambda cluster: cluster.lose_and_replace_many(SOME)),
        Event(f"a worker of each of {SOME} hosts is killed", lambda cluster: cluster.fail(SOME)),
        Event("the coordinator is lost and replaced", SimulatedCluster.take_over),
    ]
    elastic = [
        Event(f"scaled down by {SOME}", lambda cluster: _scale(cluster, MANY - SOME)),
        Event(f"scaled up by {SOME}", lambda cluster: _scale(cluster, MANY)),
    ]
    lines = _measure(SimulatedCluster(FEW), [replaced], alternations)
    for policy in (WORKER, ALL):
        lines += _measure(SimulatedCluster(MANY, policy=policy), [replaced, *whole], alternations)
        lines += _measure(SimulatedCluster(MANY, policy=policy, min_hosts=MANY // 2), elastic, alternations)
        drained = Event(f"{SOME} are drained", lambda cluster: cluster.drain(SOME))
        lines += _measure(SimulatedCluster(MANY, policy=policy, min_hosts=MANY // 2), [drained, ENDED], 1)
    return lines


def _scale(cluster: SimulatedCluster, num_hosts: int) -> list[Turn]:
    return cluster.decide(lambda job, now: job.scale(num_hosts, now))


ENDED = Event(
    "all are asked to end", lambda cluster: cluster.decide(lambda job, now: job.interrupted(signal.SIGTERM, now))
)


def _measure(cluster: SimulatedCluster, events: list[Event], rounds: int) -> list[Line]:
    """Let these happen in turn. Each line is of the longest decision of each round."""
    cluster.start()
    where = f"{cluster.num_hosts} hosts, --restart {cluster.policy.value}"
    lines = [_line(f"{where}, start: the longest decision", "ms of processor time", [_longest_ms(cluster.turns)])]
    longest_ms: dict[Event, list[float]] = {event: [] for event in events}
    total_ms: dict[Event, list[float]] = {event: [] for event in events}
    num_bytes: dict[Event, list[float]] = {event: [] for event in events}
    for _ in range(rounds):
        for event in events:
            cluster.forget()
            gc.collect()
            gc.freeze()  # the other agents are in this process, and the coordinator's collector would look at them
            turns = event.happens(cluster)
            longest_ms[event].append(_longest_ms(turns))
            total_ms[event].append(sum(1e3 * turn.cpu_s for turn in turns))
            num_bytes[event].append(float(sum(cluster.num_bytes.values())))
    if cluster.outcome is None:
        cluster.check()
    gc.unfreeze()
    for event in events:
        name = f"{where}, {event.what}"
        lines += [
            _line(f"{name}: the longest decision", "ms of processor time", longest_ms[event]),
            _line(f"{name}: all decisions", "ms of processor time", total_ms[event], None),
            _line(f"{name}: all messages", "bytes", num_bytes[event], event.max_bytes),
        ]
    return lines


def _longest_ms(turns: list[Turn]) -> float:
    return 1e3 * max(turn.cpu_s for turn in turns)


def _line(name: str, unit: str, values: list[float], bound: float | None = DECISION_MS) -> Line:
    return Line(
        name=name,
        unit=unit,
        value=median(values),
        bound=None if bound is None else Bound.at_most(bound),
        details={"best": min(values), "worst": max(values)},
    )

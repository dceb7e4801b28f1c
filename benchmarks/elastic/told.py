"""Decide which kills the events of a job do not tell of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Strike", "untold"]

TOGETHER_S = 0.5  # so long after a worker its host may have died without having told of it


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A process that was killed. ``at``: monotonic seconds; ``agent``: the pid of its host's agent."""

    at: float
    what: str
    pid: int
    agent: int


def untold(strikes: Sequence[Strike], events: Iterable[Mapping[str, Any]]) -> list[Strike]:
    """Return the kills that no event tells of.

    Of an agent: that it is lost, or that another coordinates in its place. Of a worker: that it has failed; or that its
    host is lost, if that was killed in the next moment, so that nobody was left who had seen it.
    """
    pids: dict[str, int] = {}  # of agents, by their ids
    failed: set[int] = set()
    lost: set[int] = set()
    for event in events:
        if event["kind"] == "agent joined":
            pids[str(event["agent"])] = int(event["pid"])
        elif event["kind"] == "worker failed":
            failed.add(event["pid"])
        elif event["kind"] == "agent lost":
            lost.add(int(event["pid"]))
        elif event["kind"] == "takeover" and event["before"] in pids:
            lost.add(pids[event["before"]])
    fell = {strike.agent: strike.at for strike in strikes if strike.what != "worker"}

    def is_told(strike: Strike) -> bool:
        if strike.what != "worker":
            return strike.pid in lost
        fell_with_it = (
            strike.agent in lost and fell.get(strike.agent, strike.at + 2 * TOGETHER_S) < strike.at + TOGETHER_S
        )
        return strike.pid in failed or fell_with_it

    return [strike for strike in strikes if not is_told(strike)]

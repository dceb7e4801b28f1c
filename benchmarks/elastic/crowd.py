"""A job of many agents: how long until all have their workers, and what the coordinator costs when nothing happens."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median

from .job import ROOT, TrialFailed, free_port
from .journal import Entry, Journal
from .node import Node

__all__ = ["crowd"]

NUM_AGENTS, WORKERS_PER_AGENT = 100, 5  # and as many worlds as workers
RENDEZVOUS_S, IDLE_PERCENT = 5.0, 20.0
TIMEOUT_S = 60.0


def crowd(alternations: int) -> list[Line]:
    """The coordinator has a process of its own; the other agents share one, so that they are no faster than hosts."""
    found = [_trial() for _ in range(alternations)]
    seconds, percents = [each for each, _ in found], [each for _, each in found]
    return [
        Line(
            name=f"{NUM_AGENTS} agents begun until each has its {WORKERS_PER_AGENT} workers",
            unit="s",
            value=median(seconds),
            bound=Bound.at_most(RENDEZVOUS_S),
            details={"best": min(seconds), "worst": max(seconds)},
        ),
        Line(
            name=f"the coordinator, with {NUM_AGENTS * WORKERS_PER_AGENT} worlds and nothing to do",
            unit="% of a core",
            value=median(percents),
            bound=Bound.at_most(IDLE_PERCENT),
            details={"best": min(percents), "worst": max(percents)},
        ),
    ]


def _trial() -> tuple[float, float]:
    """Return seconds, and per cent of a core."""
    folder = Path(tempfile.mkdtemp(prefix="multiworld-benchmark-"))
    port = free_port()
    with ExitStack() as at_end:
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        journal = Journal(folder / "journal")
        at_end.callback(journal.close)

        def start(first: int, agents: int) -> None:
            command = [sys.executable, "-m", "benchmarks.elastic.crowd_agents", "--journal", str(folder / "journal")]
            command += ["--port", str(port), "--first", str(first), "--agents", str(agents)]
            command += ["--of", str(NUM_AGENTS), "--workers", str(WORKERS_PER_AGENT)]
            output = folder / f"output{first}"
            node = Node(f"crowd{os.getpid()}.{first}", command, env=dict(os.environ), cwd=ROOT, output=output)
            at_end.callback(node.kill)
            nodes.append(node)

        def await_event(event: str, first: int) -> Entry:
            def find() -> Entry | None:
                return next((e for e in journal.entries if e.event == event and e["first"] == first), None)

            journal.wait(lambda: find() is not None or any(n.returncode is not None for n in nodes), TIMEOUT_S)
            entry = find()
            if entry is None:
                raise TrialFailed(f"the agents from {first} did not come to {event!r}\n{nodes[-1].tail}")
            return entry

        nodes: list[Node] = []
        start(0, 1)
        await_event("begin", 0)
        start(1, NUM_AGENTS - 1)
        began = await_event("begin", 1)
        ready_at = max(await_event("running", first).at for first in (0, 1))
        return ready_at - began.at, 100.0 * float(await_event("idle", 0)["cpu"])

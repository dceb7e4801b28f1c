"""Many agents of one job in one process, whose workers exist only in their reports: no processes, no torch at work."""

from __future__ import annotations

import argparse
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from multiworld.elastic.agent.agent import Agent
from multiworld.elastic.job.actions import Greeted, InWorld, Report
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.leadership.leadership import Leadership
from multiworld.elastic.leadership.links import AgentLinks
from multiworld.elastic.rendezvous.embedded import EmbeddedRendezvous
from multiworld.elastic.rendezvous.endpoint import Endpoint
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.liveness import LivenessPolicy

from .entry_agent import ROLE, EntryAgent
from .journal import JournalWriter

__all__ = ["main"]

HOST = "127.0.0.1"
JOB, TOKEN = "crowd", b"a token"
LEASE_S = 2.0
SETTLE_S, IDLE_S = 3.0, 10.0


class Crowding:
    """Tells what the workers of one agent would: each is in one world with the one before it, and the one after it."""

    def __init__(self, loop: ProgressThread, report: Callable[[Report], None], on_running: Callable[[], None]) -> None:
        self._report, self._on_running = report, on_running
        self.agent = EntryAgent(loop, self._told)

    def _told(self, report: Report) -> None:
        self._report(report)
        if not isinstance(report, Greeted):
            return
        (place,) = [each.assignment for each in self.agent.entries.values() if each.id == report.worker]
        for world in (place.rank, (place.rank + 1) % place.world_size):
            self._report(InWorld(worker=report.worker, world=f"w{world}", left=False))
        if self.agent.num_running == place.local_world_size:
            self._on_running()


def begin(
    loop: ProgressThread, number: int, port: int, plan: JobPlan, num_workers: int, on_running: Callable[[], None]
) -> None:
    """Start one agent. On the progress thread."""
    agent_id = secrets.token_hex(16)
    endpoint = Endpoint(host=HOST, port=port, is_here=number == 0, named=f"{HOST}:{port}")
    leadership = Leadership(
        loop,
        plan,
        token=TOKEN,
        lease_s=LEASE_S,
        digest={},
        rendezvous=EmbeddedRendezvous([endpoint]),
        on_over=lambda outcome: None,
    )
    links = AgentLinks(loop, leadership, LivenessPolicy(lease_s=LEASE_S), TOKEN, JOB, agent_id)
    crowding = Crowding(loop, leadership.report, on_running)
    info = AgentInfo(
        id=agent_id,
        host=HOST,
        port=links.listen(HOST, 0),
        hostname=f"host{number}",
        pid=os.getpid(),
        num_workers=num_workers,
        role=ROLE,
    )
    leadership.begin(links, cast(Agent, crowding.agent), info)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--first", type=int, required=True, help="number of the first agent here; 0 coordinates")
    parser.add_argument("--agents", type=int, required=True, help="here")
    parser.add_argument("--of", type=int, required=True, help="in all")
    parser.add_argument("--workers", type=int, required=True, help="of each agent")
    options = parser.parse_args()
    plan = JobPlan(min_nodes=options.of, max_nodes=options.of)
    journal = JournalWriter(options.journal, first=options.first)
    loop = ProgressThread("agents")
    running = threading.Semaphore(0)
    journal.write("begin")
    for number in range(options.first, options.first + options.agents):
        loop.call_soon(partial(begin, loop, number, options.port, plan, options.workers, running.release))
    for _ in range(options.agents):
        running.acquire()
    journal.write("running")
    threading.Event().wait(SETTLE_S)
    began, used = time.monotonic(), time.process_time()
    threading.Event().wait(IDLE_S)
    journal.write("idle", cpu=(time.process_time() - used) / (time.monotonic() - began))
    threading.Event().wait()


if __name__ == "__main__":
    main()

"""Many agents of one job in one process, whose workers exist only in their reports: no processes, no torch at work."""

from __future__ import annotations

import argparse
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from multiworld.elastic.job.actions import Greeted, InWorld, MasterOpened, OpenMaster, Order, Report, Start
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.job import JobPlan
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.leadership.leadership import Leadership
from multiworld.elastic.leadership.links import AgentLinks
from multiworld.elastic.rendezvous.embedded import EmbeddedRendezvous
from multiworld.elastic.rendezvous.endpoint import Endpoint
from multiworld.wire.progress import ProgressThread
from multiworld.world.liveness import LivenessPolicy

from .journal import JournalWriter

__all__ = ["main"]

HOST = "127.0.0.1"
JOB, TOKEN = "crowd", b"a token"
LEASE_S = 2.0
SETTLE_S, IDLE_S = 3.0, 10.0


class PaperAgent:
    """What ``Leadership`` knows as this host's agent: it does at once what it is told to."""

    def __init__(self, number: int, report: Callable[[Report], None], on_running: Callable[[], None]) -> None:
        self._number, self._report, self._on_running = number, report, on_running
        self._workers: dict[int, Assignment] = {}  # by local rank
        self._master: list[Any] | None = None

    @property
    def num_running(self) -> int:
        return len(self._workers)

    def obey(self, order: Order) -> None:
        if isinstance(order, OpenMaster):
            self._master = [order.generation, HOST, 1]
            self._report(MasterOpened(generation=order.generation, address=HOST, port=1))
        elif isinstance(order, Start):
            self._start(order.worker, order.assignment)

    def use_store(self, url: str) -> None:
        """No worker forms a world here."""

    def introduction(self) -> dict[str, Any]:
        return {"workers": [], "master": self._master}

    def repeat(self) -> None:
        """No worker has failed."""

    def fence(self, then: Callable[[], None]) -> None:
        self._workers.clear()
        then()

    def _start(self, worker_id: str, assignment: Assignment) -> None:
        """Each worker is in one world with the one before it, and in one with the one after it."""
        self._workers[assignment.local_rank] = assignment
        self._report(Greeted(worker=worker_id))
        rank, world_size = assignment.rank, assignment.world_size
        for world in (rank, (rank + 1) % world_size):
            self._report(InWorld(worker=worker_id, world=f"w{world}", left=False))
        if len(self._workers) == assignment.local_world_size:
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
    agent: Any = PaperAgent(number, leadership.report, on_running)
    info = AgentInfo(
        id=agent_id,
        host=HOST,
        port=links.listen(HOST, 0),
        hostname=f"host{number}",
        pid=os.getpid(),
        num_workers=num_workers,
        role="default",
    )
    leadership.begin(links, agent, info)


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

"""Agents of one job in one process: their links, succession and decisions are real, their workers are entries."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from benchmarks.elastic.entry_agent import ROLE, Entry, EntryAgent
from multiworld.elastic.agent.agent import Agent
from multiworld.elastic.job.actions import (
    Outcome,
)
from multiworld.elastic.job.job import Phase
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.leadership.election import Role
from multiworld.elastic.leadership.leadership import Leadership
from multiworld.elastic.leadership.links import AgentLinks
from multiworld.elastic.rendezvous.embedded import EmbeddedRendezvous
from multiworld.elastic.rendezvous.endpoint import Endpoint
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.liveness import LivenessPolicy

LEASE_S = 0.6
HANG_S = LivenessPolicy().hang_s
NUM_WORKERS = 2
CLOSE_S = 5.0


class SimulatedAgent:
    """One host of the job."""

    def __init__(self, port: int, plan: JobPlan, *, hang_s: float = HANG_S) -> None:
        self.id = secrets.token_hex(4)
        self.host_id = f"host of {self.id}"
        self.outcome: Outcome | None = None
        self.is_dead = False
        self.loop = ProgressThread(f"agent-{self.id}")
        rendezvous = EmbeddedRendezvous([Endpoint(host="127.0.0.1", port=port, is_here=True, named="the endpoint")])
        self.leadership = Leadership(
            self.loop,
            plan,
            token=b"secret",
            lease_s=LEASE_S,
            digest={},
            rendezvous=rendezvous,
            on_over=self._ended,
        )
        # all are one process, which runs: so whoever says nothing is given up for that
        policy = LivenessPolicy(lease_s=LEASE_S, hang_s=hang_s)
        self.links = AgentLinks(self.loop, self.leadership, policy, b"secret", "simulated", self.id)
        self.agent = EntryAgent(self.loop, self.leadership.report)
        self.loop.call_soon(self._begin)

    def __repr__(self) -> str:
        return f"<{self.id} {self.leadership.role.value}>"

    @property
    def running(self) -> list[Entry]:
        return [entry for entry in list(self.agent.entries.values()) if entry.returncode is None]

    def fail_one(self) -> None:
        """Let its first worker be killed."""

        def fail() -> None:
            for entry in self.running[:1]:
                self.agent.exit(entry.id, -9)

        self.loop.call_soon(fail)

    def pause(self, seconds: float) -> None:
        """Let it do nothing for a while, as if it was stopped; returns at once."""
        self.loop.call_soon(partial(time.sleep, seconds))

    def finish(self) -> None:
        """Let all its workers end well."""

        def finish() -> None:
            for entry in self.running:
                self.agent.exit(entry.id, 0)

        self.loop.call_soon(finish)

    def kill(self) -> None:
        """Let it die with all that it runs, as far as the others can see."""
        self._close(self.links.abort)

    def close(self) -> None:
        self._close(self.links.close)

    def _close(self, close_links: Callable[[], None]) -> None:
        closed = threading.Event()

        def close() -> None:
            self.leadership.abort()
            self.agent.entries.clear()
            close_links()
            closed.set()

        self.is_dead = True
        self.loop.call_soon(close)
        assert closed.wait(CLOSE_S)
        self.loop.stop()

    def _begin(self) -> None:
        port = self.links.listen("127.0.0.1", 0)
        info = AgentInfo(
            id=self.id,
            host="127.0.0.1",
            port=port,
            hostname=self.id,
            pid=os.getpid(),
            num_workers=NUM_WORKERS,
            role=ROLE,
            host_id=self.host_id,
        )
        self.leadership.begin(self.links, cast(Agent, self.agent), info)

    def _ended(self, outcome: Outcome) -> None:
        self.outcome = outcome


def disorder(agents: list[SimulatedAgent], plan: JobPlan) -> str | None:
    """Return what is not as it should be once everything has settled, or None."""
    alive = [agent for agent in agents if not agent.is_dead]
    leaders = [agent for agent in alive if agent.leadership.role is Role.LEADING]
    if len(leaders) != 1 or any(agent.leadership.role is Role.SEARCHING for agent in alive):
        return f"no single leader: {alive}"
    coordinator = leaders[0].leadership.coordinator
    if coordinator is None or coordinator.job.phase is not Phase.RUNNING:
        return f"the job is not running: {alive}"
    if {info.id for info in coordinator.job.nodes.agents.values()} != {agent.id for agent in alive}:
        return f"the job has {[*coordinator.job.nodes.agents]}, and there are {alive}"
    places = [entry.assignment for agent in alive for entry in agent.running]
    wanted = NUM_WORKERS * min(len(alive), plan.max_nodes)
    if sorted(place.rank for place in places) != list(range(wanted)):
        return f"ranks {sorted(place.rank for place in places)} of {wanted} run"
    if len({(place.generation, place.master_port, place.world_size) for place in places}) != 1:
        return f"workers of different memberships run: {places}"
    return None

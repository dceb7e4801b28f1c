"""A job of many agents without links: real decisions, and every message packed, counted and timed as links would."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import cast

from multiworld.elastic.job.actions import Order, Outcome, Report
from multiworld.elastic.job.history import History
from multiworld.elastic.job.job import Job, JobPlan, Phase
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.options import RestartPolicy
from multiworld.elastic.job.roster import Roster
from multiworld.elastic.leadership.coordinator import Coordinator
from multiworld.elastic.leadership.event_log import EventLog
from multiworld.elastic.leadership.mailroom import RosterCopy
from multiworld.elastic.leadership.messages import AGENT_MESSAGES, AgentMessage, Attach, RosterChanged, RosterTold
from multiworld.wire.frames import HEADER_BYTES
from multiworld.wire.progress import ProgressThread

from .entry_agent import ROLE, EntryAgent

__all__ = ["HandDrivenLoop", "SimulatedCluster", "Turn"]

EVERY = 25  # so many agents for one of which it is followed what it knows
SOON_S = 1.0
LEADER = "leader"
NUM_WORKERS = 2


class HandDrivenLoop:
    """Stands for a progress thread: runs what is due soon when it is told to."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> HandDrivenTimer:
        timer = HandDrivenTimer(callback)
        if delay_s <= SOON_S:
            self.due.append(timer.run)
        return timer

    def run(self) -> None:
        while self.due:
            self.due.popleft()()


@dataclass
class HandDrivenTimer:
    callback: Callable[[], None] | None

    def run(self) -> None:
        if self.callback is not None:
            self.callback()

    def cancel(self) -> None:
        self.callback = None


@dataclass(frozen=True)
class Turn:
    """The coordinator had something to do, and nobody else had a turn before it was done."""

    what: str
    cpu_s: float
    num_calls: int
    """Of functions, if they are counted."""


@dataclass
class SimulatedCluster:
    """A coordinator and its followers. What the coordinator does is timed, each turn of its loop by itself."""

    num_hosts: int
    policy: RestartPolicy = RestartPolicy.WORKER
    takes_changes: bool = True
    counts_calls: bool = False
    agents: dict[str, EntryAgent] = field(default_factory=dict)
    copies: dict[str, RosterCopy] = field(default_factory=dict)
    num_bytes: Counter[str] = field(default_factory=Counter)
    num_messages: Counter[str] = field(default_factory=Counter)
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop, self._coordinators_loop = HandDrivenLoop(), HandDrivenLoop()
        self._num_lost = 0
        self._packed: tuple[AgentMessage | None, bytes] = (None, b"")
        plan = JobPlan(min_nodes=self.num_hosts, max_nodes=self.num_hosts, policy=self.policy, last_call_s=0.0)
        self.coordinator = Coordinator(
            cast(ProgressThread, self._coordinators_loop),
            Job(plan, now=time.monotonic()),
            term=1,
            agent_id=LEADER,
            store="tcp://127.0.0.1:1",
            events=EventLog(History(), term=1, agent_id=LEADER, send=self._send),
            send=self._send,
            on_over=self._over,
        )

    def start(self) -> None:
        """Let all hosts come."""
        for name in [LEADER, *(f"agent-{number:04}" for number in range(1, self.num_hosts))]:
            self.come(name)
            if not len(self.agents) % 50:
                self.settle()
        self.settle()

    def forget(self) -> None:
        """Count from now on."""
        self.num_bytes.clear()
        self.num_messages.clear()
        self.turns.clear()

    def come(self, name: str) -> None:
        info = AgentInfo(
            id=name,
            host="192.168.100.100",
            port=29400,
            hostname=f"host-{name}",
            pid=10**6,
            num_workers=NUM_WORKERS,
            role=ROLE,
        )
        agent = self.agents[name] = EntryAgent(cast(ProgressThread, self._loop), partial(self._report, name))
        here = agent.introduction()
        attach = Attach(agent=info, takes_roster_changes=self.takes_changes, workers=here.workers, master=here.master)
        self._time("attach", partial(self._admit, attach))

    def _admit(self, attach: Attach) -> None:
        name = attach.agent.id
        if name != LEADER:
            self._count(attach)
            welcome = self.coordinator.welcome(attach, peer="", heartbeat_s=1.0)
            self._count(welcome)
            if len(self.agents) % EVERY == 0 or len(self.agents) == self.num_hosts:
                self.copies[name] = RosterCopy()
                self.copies[name].take(welcome)
        self.coordinator.attach(attach)

    def lose_and_replace(self) -> list[Turn]:
        """Let the next host die, and another come in its place; returns what the coordinator did."""
        number = self._num_lost = self._num_lost + 1
        first = len(self.turns)
        self.lose(f"agent-{self.num_hosts // 5 + number:04}")
        self.settle()
        self.come(f"newcomer-{number}")
        self.settle()
        return self.turns[first:]

    def lose(self, name: str) -> None:
        del self.agents[name]
        self.copies.pop(name, None)
        self._time("lose", partial(self.coordinator.lose, name, "its process died"))

    def settle(self) -> None:
        """Let everybody do what there is to do now."""
        while self._loop.due or self._coordinators_loop.due:
            if self._coordinators_loop.due:
                self._time("timer", self._coordinators_loop.due.popleft())
            else:
                self._loop.due.popleft()()

    def _time(self, what: str, turn: Callable[[], None]) -> None:
        num_calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal num_calls
            num_calls += event in ("call", "c_call")

        if self.counts_calls:
            sys.setprofile(count)
        began = time.thread_time()
        try:
            turn()
        finally:
            cpu_s = time.thread_time() - began
            sys.setprofile(None)
        self.turns.append(Turn(what, cpu_s, num_calls))

    def _over(self, outcome: Outcome) -> None:
        raise AssertionError(f"the job has ended: {outcome}")

    def _send(self, name: str, message: AgentMessage) -> None:
        if name == LEADER:
            if isinstance(message, Order):
                self._loop.call_soon(partial(self.agents[name].obey, message))
        elif name in self.agents:
            self._loop.call_soon(partial(self._hear, name, message, self._count(message)))

    def _hear(self, name: str, message: AgentMessage, packed: bytes) -> None:
        if isinstance(message, (RosterTold, RosterChanged)) and name not in self.copies:
            return
        unpacked = AGENT_MESSAGES.decode(packed)
        if isinstance(unpacked, (RosterTold, RosterChanged)):
            assert self.copies[name].take(unpacked)
        elif isinstance(unpacked, Order) and name in self.agents:
            self.agents[name].obey(unpacked)

    def _report(self, name: str, report: Report) -> None:
        self._loop.call_soon(partial(self._time, type(report).__name__, partial(self._reported, name, report)))

    def _reported(self, name: str, report: Report) -> None:
        if name == LEADER:
            self.coordinator.hear(name, report)
        elif name in self.agents:
            self.coordinator.hear(name, AGENT_MESSAGES.decode(self._count(report)))

    def _count(self, message: AgentMessage) -> bytes:
        if message is not self._packed[0]:  # as the links of agents do
            self._packed = (message, AGENT_MESSAGES.encode(message))
        what = type(message).__name__
        self.num_bytes[what] += HEADER_BYTES + len(self._packed[1])
        self.num_messages[what] += 1
        return self._packed[1]

    def check(self) -> None:
        """Agents know what the coordinator does, and every rank runs once. Raises AssertionError."""
        job = self.coordinator.job
        assert job.phase is Phase.RUNNING
        expected = _without_news(self.coordinator.roster.abridged())  # those that are followed are far from succeeding
        assert all(_without_news(copy.roster) == expected for copy in self.copies.values())
        places = [entry.assignment for agent in self.agents.values() for entry in agent.entries.values()]
        assert sorted(place.rank for place in places) == list(range(NUM_WORKERS * self.num_hosts))
        assert {place.generation for place in places} == {job.generation}


def _without_news(roster: Roster | None) -> Roster:
    """Return it without that which is told only with the next change."""
    assert roster is not None
    return replace(roster, num_events=0, uses_multiworld=True)

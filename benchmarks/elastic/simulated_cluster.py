"""A job of many agents without links: real decisions, and every message packed, counted and timed as links would."""

from __future__ import annotations

import gc
import heapq
import itertools
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from types import FrameType
from typing import cast

from multiworld.elastic.job.actions import Action, Order, Outcome, Report
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.history import History
from multiworld.elastic.job.job import Job, Phase
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.job.roster import Roster
from multiworld.elastic.leadership.coordinator import Coordinator
from multiworld.elastic.leadership.election import may_succeed
from multiworld.elastic.leadership.event_log import EventLog
from multiworld.elastic.leadership.mailroom import RosterCopy
from multiworld.elastic.leadership.messages import (
    AGENT_MESSAGES,
    AgentMessage,
    Attach,
    Ended,
    RosterChanged,
    RosterTold,
)
from multiworld.wire.connection.frames import HEADER_BYTES
from multiworld.wire.progress.thread import ProgressThread

from .entry_agent import ROLE, EntryAgent

__all__ = ["HandDrivenLoop", "SimulatedCluster", "Turn"]

EVERY = 25  # so many agents for one of which it is followed what it knows
SOON_S = 1.0
NUM_WORKERS = 2


class HandDrivenLoop:
    """Stands for a progress thread: runs what is due soon when it is told to. Timers run when nothing else is due."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.timers: list[tuple[float, int, HandDrivenTimer]] = []
        self._orders = itertools.count()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> HandDrivenTimer:
        timer = HandDrivenTimer(callback)
        if delay_s <= SOON_S:
            heapq.heappush(self.timers, (delay_s, next(self._orders), timer))
        return timer

    def ripen(self) -> None:
        """Let the shortest timer be due."""
        self.due.append(heapq.heappop(self.timers)[2].run)

    def run(self) -> None:
        while self.due or self.timers:
            if not self.due:
                self.ripen()
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
    min_hosts: int | None = None
    """With how few the job goes on; None: with no fewer than there are."""
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
        self._infos: dict[str, AgentInfo] = {}
        self._packed: tuple[AgentMessage | None, bytes] = (None, b"")
        self.outcome: Outcome | None = None
        self.plan = JobPlan(
            min_nodes=self.num_hosts if self.min_hosts is None else self.min_hosts,
            max_nodes=self.num_hosts,
            policy=self.policy,
            budget=RestartBudget(max_restarts=1000),
            last_call_s=inf,  # until all are there
        )
        self.coordinator = self._coordinate("agent-0000", 1, Job(self.plan, now=time.monotonic()))

    def _coordinate(self, leader: str, term: int, job: Job) -> Coordinator:
        self.leader = leader
        return Coordinator(
            cast(ProgressThread, self._coordinators_loop),
            job,
            term=term,
            agent_id=leader,
            store=f"tcp://127.0.0.1:{term}",
            events=EventLog(History(), term=term, agent_id=leader, send=self._send),
            send=self._send,
            on_over=self._over,
        )

    def start(self) -> None:
        """Let all hosts come."""
        for number in range(self.num_hosts):
            self.come(f"agent-{number:04}")
            if not len(self.agents) % 50:
                self.settle()
                gc.freeze()  # the other agents are in this process, and the coordinator's collector would look at them
        self.settle()
        gc.unfreeze()

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
        self._infos[name] = info
        self.agents[name] = EntryAgent(cast(ProgressThread, self._loop), partial(self._report, name))
        self._introduce(name)

    def _introduce(self, name: str) -> None:
        here = self.agents[name].introduction()
        attach = Attach(
            agent=self._infos[name],
            takes_roster_changes=self.takes_changes,
            workers=here.workers,
            master=here.master,
            ages_s=here.ages_s,
        )
        self._time("attach", partial(self._admit, attach))

    def _admit(self, attach: Attach) -> None:
        name = attach.agent.id
        if name != self.leader:
            self._count(attach)
            welcome = self.coordinator.welcome(attach, peer="", heartbeat_s=1.0)
            self._count(welcome)
            if name in self.copies or len(self.agents) % EVERY == 0 or len(self.agents) == self.num_hosts:
                self.copies[name] = RosterCopy()
                self.copies[name].take(welcome)
        self.coordinator.attach(attach)

    def lose_and_replace(self) -> list[Turn]:
        """Let the next host die, and another come in its place; returns what the coordinator did."""
        return self.lose_and_replace_many(1)

    def lose_and_replace_many(self, num_hosts: int) -> list[Turn]:
        """Let the next hosts die at once, and then others come in their places."""
        first = len(self.turns)
        numbers = range(self._num_lost, self._num_lost + num_hosts)
        self._num_lost += num_hosts
        for number in numbers:
            self.lose(f"agent-{self.num_hosts // 5 + number:04}")
        self.settle()
        for number in numbers:
            self.come(f"newcomer-{number}")
        self.settle()
        return self.turns[first:]

    def fail(self, num_workers: int) -> list[Turn]:
        """Let the first worker of each of the last hosts die, all at once."""
        first = len(self.turns)
        for agent in list(self.agents.values())[-num_workers:]:
            agent.exit(agent.entries[0].id, -9)
        self.settle()
        return self.turns[first:]

    def decide(self, decision: Callable[[Job, float], list[Action]]) -> list[Turn]:
        """Let the job decide on what somebody wants."""
        first = len(self.turns)
        self._time("decide", partial(self.coordinator.decide, decision))
        self.settle()
        return self.turns[first:]

    def wants(self, num_hosts: int) -> None:
        """Somebody wants so many hosts to have ranks from now on."""
        self._time("scale", partial(self.coordinator.decide, lambda job, now: job.scale(num_hosts, now)))

    def drain(self, num_hosts: int) -> list[Turn]:
        """Drain the last hosts, one after the other."""
        first = len(self.turns)
        for name in self.coordinator.job.nodes.active[-num_hosts:]:
            self._time("drain", partial(self.coordinator.decide, partial(_drain, name)))
        self.settle()
        return self.turns[first:]

    def take_over(self) -> list[Turn]:
        """Let the coordinator die, the next in line take over, all others come to it, and a host replace the first."""
        first, before = len(self.turns), self.coordinator
        roster = before.roster
        before.close()
        self._coordinators_loop.due.clear()
        self._coordinators_loop.timers.clear()
        del self.agents[self.leader]
        dead, heir = {self.leader}, next(iter(self.agents))
        self.copies.pop(heir, None)

        def lead() -> None:
            job = Job.resume(self.plan, roster, now=time.monotonic(), dead=dead)
            self.coordinator = self._coordinate(heir, before.term + 1, job)
            self.coordinator.took_over(self._infos[heir], roster)
            self.coordinator.start()

        self._time("take over", lead)
        for name in list(self.agents):
            self._introduce(name)
        self.settle()
        self.come(f"newcomer-of-term-{before.term + 1}")
        self.settle()
        return self.turns[first:]

    def lose(self, name: str) -> None:
        del self.agents[name]
        self.copies.pop(name, None)
        self._time("lose", partial(self.coordinator.lose, name, "its process died"))

    def settle(self) -> None:
        """Let everybody do what there is to do now."""
        while self.turn():
            pass

    def turn(self, *, agents_first: bool = False) -> bool:
        """Let the coordinator, or else an agent, do the next thing that it has to; False: nobody has any."""
        loops = (self._coordinators_loop, self._loop)
        if self._coordinators_loop.due and not (agents_first and self._loop.due):
            self._time("timer", self._coordinators_loop.due.popleft())
        elif self._loop.due:
            self._loop.due.popleft()()
        elif timed := [loop for loop in loops if loop.timers]:
            min(timed, key=lambda loop: loop.timers[0][0]).ripen()
        else:
            return False
        return True

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
        self.outcome = outcome

    def _send(self, name: str, message: AgentMessage) -> None:
        if name == self.leader:
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
        elif isinstance(unpacked, Ended):
            self.agents.pop(name, None)
            self.copies.pop(name, None)
        elif isinstance(unpacked, Order) and name in self.agents:
            self.agents[name].obey(unpacked)

    def _report(self, name: str, report: Report) -> None:
        self._loop.call_soon(partial(self._time, type(report).__name__, partial(self._reported, name, report)))

    def _reported(self, name: str, report: Report) -> None:
        if name == self.leader:
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

    @property
    def places(self) -> list[Assignment]:
        """Of all workers that run."""
        entries = [entry for agent in self.agents.values() for entry in agent.entries.values()]
        return [entry.assignment for entry in entries if entry.returncode is None]

    def check(self) -> None:
        """Agents know what the coordinator does, and every rank runs once. Raises AssertionError."""
        job = self.coordinator.job
        assert job.phase is Phase.RUNNING
        full = _without_news(self.coordinator.roster)
        heirs = may_succeed(self.coordinator.attached, self.leader)
        for name, copy in self.copies.items():
            assert _without_news(copy.roster) == (full if name in heirs else full.abridged())
        places = self.places
        assert sorted(place.rank for place in places) == list(range(NUM_WORKERS * len(job.nodes.active)))
        assert {place.generation for place in places} == {job.generation}


def _drain(name: str, job: Job, now: float) -> list[Action]:
    return job.drain(name, now)


def _without_news(roster: Roster | None) -> Roster:
    """Return it without that which is told only with the next change."""
    assert roster is not None
    return replace(roster, num_events=0, uses_multiworld=True)

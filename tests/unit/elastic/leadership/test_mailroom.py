"""A thousand agents of one job: what the coordinator writes to them when a host is lost, and another comes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest

from multiworld.elastic.job.actions import Order, Outcome, Report
from multiworld.elastic.job.history import History
from multiworld.elastic.job.job import Job, JobPlan, Phase
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.options import RestartPolicy
from multiworld.elastic.job.roster import Roster, RosterChange, RosterEntry, change_between, changed
from multiworld.elastic.leadership.coordinator import Coordinator
from multiworld.elastic.leadership.event_log import EventLog
from multiworld.elastic.leadership.mailroom import Mailroom, RosterCopy
from multiworld.elastic.leadership.messages import AGENT_MESSAGES, AgentMessage, Attach, RosterChanged, RosterTold
from multiworld.process.messages import from_json, to_json
from multiworld.wire.frames import HEADER_BYTES
from multiworld.wire.handshake import decode_fields, encode_fields
from multiworld.wire.progress import ProgressThread
from tests.unit.elastic.simulated_agents import EntryAgent

NUM_HOSTS = 1000
MAX_BYTES = 2_000_000  # when one host is lost and replaced
EVERY = 25  # so many agents for one of which it is followed what it knows
SOON_S = 1.0
NEWCOMER = "newcomer"
LEADER = "leader"


class HandDrivenLoop:
    """Stands for a progress thread: runs what is due soon when it is told to."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> HandDrivenTimer:
        timer = HandDrivenTimer(callback)
        if delay_s <= SOON_S:
            self._due.append(timer.run)
        return timer

    def run(self) -> None:
        while self._due:
            self._due.pop(0)()


@dataclass
class HandDrivenTimer:
    callback: Callable[[], None] | None

    def run(self) -> None:
        if self.callback is not None:
            self.callback()

    def cancel(self) -> None:
        self.callback = None


@dataclass
class Cluster:
    """A coordinator and its followers: all that they tell each other is packed, counted and unpacked."""

    plan: JobPlan
    takes_changes: bool = True
    loop: HandDrivenLoop = field(default_factory=HandDrivenLoop)
    agents: dict[str, EntryAgent] = field(default_factory=dict)
    copies: dict[str, RosterCopy] = field(default_factory=dict)
    num_bytes: Counter[str] = field(default_factory=Counter)
    num_notes: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)  # by each decision of the coordinator
    packed: tuple[AgentMessage | None, bytes] = (None, b"")

    def __post_init__(self) -> None:
        loop = cast(ProgressThread, self.loop)
        self.coordinator = Coordinator(
            loop,
            Job(self.plan, now=time.monotonic()),
            term=1,
            agent_id=LEADER,
            store="tcp://127.0.0.1:1",
            events=EventLog(History(), term=1, agent_id=LEADER, send=self.send),
            send=self.send,
            on_over=self.over,
        )

    def over(self, outcome: Outcome) -> None:
        raise AssertionError(f"the job has ended: {outcome}")

    def come(self, name: str) -> None:
        info = AgentInfo(
            id=name,
            host="192.168.100.100",
            port=29400,
            hostname=f"host-{name}",
            pid=10**6,
            num_workers=2,
            role="default",
        )
        agent = EntryAgent(cast(ProgressThread, self.loop), partial(self.report, name))
        self.agents[name] = agent
        report = agent.introduction()
        attach = Attach(
            agent=info,
            takes_roster_changes=self.takes_changes,
            workers=report.workers,
            master=report.master,
        )
        if name != LEADER:
            self.count(attach)
            welcome = self.coordinator.welcome(attach, peer="", heartbeat_s=1.0)
            self.count(welcome)
            if len(self.agents) % EVERY == 0 or name == NEWCOMER:
                self.copies[name] = RosterCopy()
                self.copies[name].take(welcome)
        self.decide(partial(self.coordinator.attach, attach))

    def lose(self, name: str) -> None:
        del self.agents[name]
        self.copies.pop(name, None)
        self.decide(partial(self.coordinator.lose, name, "its process died"))

    def decide(self, decision: Callable[[], None]) -> None:
        began = time.thread_time()
        decision()
        self.took_s.append(time.thread_time() - began)

    def send(self, name: str, message: AgentMessage) -> None:
        if name == LEADER:
            if isinstance(message, Order):
                self.loop.call_soon(partial(self.agents[name].obey, message))
        elif name in self.agents:
            self.loop.call_soon(partial(self.hear, name, message, self.count(message)))

    def hear(self, name: str, message: AgentMessage, packed: bytes) -> None:
        if isinstance(message, (RosterTold, RosterChanged)) and name not in self.copies:
            return
        unpacked = AGENT_MESSAGES.decode(packed)
        if isinstance(unpacked, (RosterTold, RosterChanged)):
            assert self.copies[name].take(unpacked)
        elif isinstance(unpacked, Order):
            self.agents[name].obey(unpacked)

    def report(self, name: str, report: Report) -> None:
        if name != LEADER:
            self.count(report)
        self.decide(partial(self.coordinator.hear, name, report))

    def count(self, message: AgentMessage) -> bytes:
        if message is not self.packed[0]:  # as the links of agents do
            self.packed = (message, AGENT_MESSAGES.encode(message))
        what = type(message).__name__
        self.num_bytes[what] += HEADER_BYTES + len(self.packed[1])
        self.num_notes[what] += 1
        return self.packed[1]

    def check(self) -> None:
        """Agents know what the coordinator does, and every rank runs once."""
        job = self.coordinator.job
        assert job.phase is Phase.RUNNING
        expected = without_news(self.coordinator.roster)
        assert all(without_news(copy.roster) == expected for copy in self.copies.values())
        places = [entry.assignment for agent in self.agents.values() for entry in agent.entries.values()]
        assert sorted(place.rank for place in places) == list(range(2 * NUM_HOSTS))
        assert {place.generation for place in places} == {job.generation}


def without_news(roster: Roster | None) -> Roster:
    """Return it without that which is told only with the next change."""
    assert roster is not None
    return replace(roster, num_events=0, uses_multiworld=True)


def lose_and_replace(*, takes_changes: bool = True) -> Cluster:
    """Return the cluster after that, with what it took from the loss on."""
    plan = JobPlan(min_nodes=NUM_HOSTS, max_nodes=NUM_HOSTS, policy=RestartPolicy.WORKER, last_call_s=0.0)
    cluster = Cluster(plan, takes_changes=takes_changes)
    for name in [LEADER, *(f"agent-{number:04}" for number in range(1, NUM_HOSTS))]:
        cluster.come(name)
        if not len(cluster.agents) % 50:
            cluster.loop.run()
    cluster.loop.run()
    cluster.check()
    cluster.num_bytes.clear()
    cluster.num_notes.clear()
    cluster.took_s.clear()
    cluster.lose("agent-0200")
    cluster.loop.run()
    cluster.come(NEWCOMER)
    cluster.loop.run()
    cluster.check()
    return cluster


@pytest.mark.timeout(300)
def test_one_host_of_a_thousand_lost_and_replaced_costs_two_megabytes_at_most() -> None:
    cluster = lose_and_replace()
    assert sum(cluster.num_bytes.values()) <= MAX_BYTES
    assert not cluster.num_notes["RosterTold"]


def roster(members: str, *, active: str = "", finished: str = "", **others: Any) -> Roster:
    entries = tuple(RosterEntry(id=name, host="127.0.0.1", port=1) for name in members)
    lists = {"active": tuple(active), "finished": tuple(finished)}
    return Roster(
        **{"term": 1, "coordinator": "a", "generation": 1, "store": "s", "members": entries, **lists, **others}
    )


@pytest.mark.parametrize(
    "after",
    [
        roster("abc", active="abc"),
        roster("abd", active="abd", generation=2),
        roster("abcd", active="abdc", finished="ad"),
        roster("", active="", signum=15, given_up="why"),
        roster("bc", active="cb", wanted_nodes=2, uses_multiworld=True, num_events=7),
        roster("abc", active="abc", draining=("b",)),
    ],
)
def test_a_change_leads_from_one_roster_to_the_other_over_the_wire(after: Roster) -> None:
    before = roster("abc", active="abc", finished="c")
    change = change_between(before, after, since=3, revision=4)
    if change is None:  # those that stay have another order
        assert after.active == ("c", "b")
        return
    assert changed(before, from_json(RosterChange, decode_fields(encode_fields(to_json(change))))) == after


def test_what_is_known_of_active_hosts_is_part_of_the_change() -> None:
    infos = [
        AgentInfo(id=name, host="h", port=1, hostname=name, pid=1, num_workers=1, role="default", devices=devices)
        for name, devices in [("a", "cpu"), ("b", "cpu"), ("b", "gpu")]
    ]
    before = roster("ab", active="ab", known=(infos[0], infos[1]))
    after = roster("ab", active="ab", known=(infos[0], infos[2]))
    change = change_between(before, after, since=1, revision=2)
    assert change is not None
    assert change.known == (infos[2],)
    assert changed(before, change) == after


def test_another_coordinator_tells_its_roster_whole() -> None:
    assert change_between(roster("ab"), roster("ab", term=2), since=1, revision=2) is None


def welcome(mailroom: Mailroom, there: Roster, *, takes_changes: bool = True) -> RosterTold:
    return RosterTold(roster=there, revision=mailroom.welcome("b", there, takes_changes=takes_changes))


@pytest.mark.parametrize("takes_changes", [True, False])
def test_an_agent_of_a_release_without_changes_is_told_the_whole_roster(takes_changes: bool) -> None:
    sent: list[RosterTold | RosterChanged] = []
    mailroom = Mailroom(lambda agent, news: sent.append(news))
    copy = RosterCopy()
    assert copy.take(welcome(mailroom, roster("ab"), takes_changes=takes_changes))
    mailroom.tell("b", roster("abc"))
    mailroom.tell("b", roster("abc", active="c"))
    assert [type(news) for news in sent] == [RosterChanged if takes_changes else RosterTold] * 2
    assert [copy.take(news) for news in sent] == [True, True]
    assert copy.roster == roster("abc", active="c")


def test_an_agent_that_has_missed_a_change_is_told_the_whole_roster_once_it_says_so() -> None:
    sent: list[RosterTold | RosterChanged] = []
    mailroom = Mailroom(lambda agent, news: sent.append(news))
    copy = RosterCopy()
    copy.take(welcome(mailroom, roster("ab")))
    mailroom.tell("b", roster("abc"))
    mailroom.tell("b", roster("abcd"))
    assert not copy.take(sent[1])
    assert copy.roster == roster("ab")
    mailroom.tell_whole("b", roster("abcd"))
    assert copy.take(sent[2])
    mailroom.tell("b", roster("d"))
    assert copy.take(sent[3])
    assert copy.roster == roster("d")


def test_an_agent_that_knows_all_is_told_nothing() -> None:
    sent: list[RosterTold | RosterChanged] = []
    mailroom = Mailroom(lambda agent, news: sent.append(news))
    welcome(mailroom, roster("ab"))
    mailroom.tell("b", roster("ab"))
    assert not sent

"""A thousand agents of one job: what the coordinator writes to them when a host is lost, and another comes."""

from __future__ import annotations

from statistics import median
from typing import Any, cast

import pytest

from benchmarks.elastic.simulated_cluster import HandDrivenLoop, SimulatedCluster
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.options import RestartPolicy
from multiworld.elastic.job.roster import Roster, RosterChange, RosterEntry, change_between, changed
from multiworld.elastic.leadership.mailroom import Mailroom, RosterCopy
from multiworld.elastic.leadership.messages import AgentMessage, RosterChanged, RosterTold
from multiworld.elastic.leadership.outbox import Outbox
from multiworld.wire.messages import decode, encode
from multiworld.wire.progress.thread import ProgressThread

MAX_BYTES = 2_000_000  # when one host is lost and replaced
ROUNDS = 5
SLACK = 2.0  # for a machine that is busy


@pytest.fixture(scope="module")
def thousand() -> SimulatedCluster:
    cluster = SimulatedCluster(1000)
    cluster.start()
    cluster.check()
    return cluster


@pytest.mark.timeout(300)
def test_one_host_of_a_thousand_lost_and_replaced_costs_two_megabytes_at_most(thousand: SimulatedCluster) -> None:
    thousand.forget()
    thousand.lose_and_replace()
    thousand.check()
    assert sum(thousand.num_bytes.values()) <= MAX_BYTES
    assert not thousand.num_messages["RosterTold"]
    assert not thousand.num_messages["Reassign"]  # none has another rank
    assert thousand.num_messages["Membership"] == 998


@pytest.mark.timeout(300)
def test_so_it_does_when_all_workers_are_started_again() -> None:
    cluster = SimulatedCluster(1000, policy=RestartPolicy.ALL)
    cluster.start()
    cluster.forget()
    cluster.lose_and_replace()
    cluster.check()
    assert sum(cluster.num_bytes.values()) <= MAX_BYTES
    assert cluster.num_messages["Start"] == cluster.num_messages["Exited"] + 2  # the newcomer's


@pytest.mark.timeout(300)
def test_a_decision_costs_not_more_by_host_the_more_hosts_there_are(thousand: SimulatedCluster) -> None:
    hundred = SimulatedCluster(100)
    hundred.start()
    longest_s = {}
    for cluster in (hundred, thousand):  # in turn, as the machine may be busy with something else
        longest_s[cluster.num_hosts] = median(
            max(turn.cpu_s for turn in cluster.lose_and_replace()) for _ in range(ROUNDS)
        )
    assert longest_s[1000] <= 10 * SLACK * longest_s[100]
    num_calls = {}
    for cluster in (hundred, thousand):
        cluster.counts_calls = True
        num_calls[cluster.num_hosts] = sum(turn.num_calls for turn in cluster.lose_and_replace())
        cluster.counts_calls = False
        cluster.check()
    assert num_calls[1000] <= 10 * num_calls[100]


@pytest.mark.timeout(300)
def test_the_whole_roster_is_told_to_those_that_may_succeed_the_coordinator(thousand: SimulatedCluster) -> None:
    full = thousand.coordinator.roster
    assert [len(copy.roster.known) for copy in thousand.copies.values() if copy.roster] == [0] * len(thousand.copies)
    assert {each.id for each in full.known} == set(full.active)
    assert thousand.num_hosts == len(full.active)


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
    assert changed(before, decode(RosterChange, encode(change))) == after


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


class Reader:
    """The agent ``b``. It is told each change of the roster at once."""

    def __init__(self) -> None:
        self.sent: list[RosterTold | RosterChanged] = []
        self.copy = RosterCopy()
        self._loop = HandDrivenLoop()
        self.mailroom = Mailroom(Outbox(cast(ProgressThread, self._loop), self._send))

    def _send(self, agent: str, message: AgentMessage) -> None:
        assert isinstance(message, (RosterTold, RosterChanged))
        self.sent.append(message)

    def welcome(self, there: Roster, *, in_full: bool = True, takes_changes: bool = True) -> None:
        told, revision = self.mailroom.welcome("b", lambda: there, in_full=in_full, takes_changes=takes_changes)
        self.copy.take(RosterTold(roster=told, revision=revision))

    def tell(self, there: Roster, *, in_full: str = "b") -> None:
        self.mailroom.tell("b", there, in_full=in_full)
        self._loop.run()

    def tell_whole(self, there: Roster) -> None:
        self.mailroom.tell_whole("b", there, in_full=True)
        self._loop.run()


def test_agents_that_come_together_are_told_one_revision_and_what_is_new_before_long() -> None:
    reader = Reader()
    _, first = reader.mailroom.welcome("a", lambda: roster("a"), in_full=False, takes_changes=True)
    told, second = reader.mailroom.welcome(
        "b", lambda: roster("ab"), in_full=False, takes_changes=True, is_told_soon=True
    )
    assert (told, second) == (roster("a"), first)
    reader.copy.take(RosterTold(roster=told, revision=second))
    reader.tell(roster("abc"), in_full="")
    (news,) = reader.sent
    assert reader.copy.take(news)
    assert reader.copy.roster == roster("abc")


@pytest.mark.parametrize("takes_changes", [True, False])
def test_an_agent_of_a_release_without_changes_is_told_the_whole_roster(takes_changes: bool) -> None:
    reader = Reader()
    reader.welcome(roster("ab"), takes_changes=takes_changes)
    reader.tell(roster("abc"))
    reader.tell(roster("abc", active="c"))
    assert [type(news) for news in reader.sent] == [RosterChanged if takes_changes else RosterTold] * 2
    assert [reader.copy.take(news) for news in reader.sent] == [True, True]
    assert reader.copy.roster == roster("abc", active="c")


def test_an_agent_that_has_missed_a_change_is_told_the_whole_roster_once_it_says_so() -> None:
    reader = Reader()
    reader.welcome(roster("ab"))
    reader.tell(roster("abc"))
    reader.tell(roster("abcd"))
    assert not reader.copy.take(reader.sent[1])
    assert reader.copy.roster == roster("ab")
    reader.tell_whole(roster("abcd"))
    assert reader.copy.take(reader.sent[2])
    reader.tell(roster("d"))
    assert reader.copy.take(reader.sent[3])
    assert reader.copy.roster == roster("d")


def test_an_agent_that_knows_all_is_told_nothing() -> None:
    reader = Reader()
    reader.welcome(roster("ab"))
    reader.tell(roster("ab"))
    assert not reader.sent


def test_an_agent_that_moves_up_in_the_line_is_told_what_it_was_not_told_before() -> None:
    infos = tuple(
        AgentInfo(id=name, host="h", port=1, hostname=name, pid=1, num_workers=1, role="default") for name in "abc"
    )
    there = roster("abc", active="abc", finished="c", known=infos)
    reader = Reader()
    reader.welcome(there, in_full=False)
    assert reader.copy.roster == roster("abc", active="abc", finished="c", known=infos[2:])
    reader.tell(there, in_full="")
    assert not reader.sent
    reader.tell(there)
    (news,) = reader.sent
    assert isinstance(news, RosterChanged)
    assert reader.copy.take(news)
    assert reader.copy.roster == there

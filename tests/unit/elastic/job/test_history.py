"""The numbered events of a job: what is kept, what is asked for, and who is told."""

from __future__ import annotations

from collections import deque
from functools import partial

import pytest

from multiworld.elastic.job.history import AT_ONCE, UNSEEN, CatchingUp, Event, History, first_number, is_covered
from multiworld.elastic.leadership.election import NUM_HEIRS, SMALL_JOB, heirs
from multiworld.elastic.leadership.event_log import EventCopy, EventLog
from multiworld.elastic.leadership.messages import EventsTold, EventsWanted


def event(number: int, term: int = 1, *, kind: str = "restart", text: str = "") -> Event:
    return Event(number=number, term=term, kind=kind, text=text, at=1.0, generation=1)


def history(*numbers: int, term: int = 1, **limits: int) -> History:
    found = History(**limits)
    for number in numbers:
        found.add(event(number, term))
    return found


def numbers(some: History) -> list[int]:
    return [each.number for each in some.since(0)]


class Job:
    """Agents that exchange notes about events; ``deliver`` until none is on its way."""

    def __init__(self) -> None:
        self.copies: dict[str, EventCopy] = {}
        self.log: EventLog
        self.chief = ""
        self.attached: dict[str, None] = {}
        self.on_the_way: deque[tuple[str, str, EventsTold | EventsWanted]] = deque()
        self.sent: list[tuple[str, EventsTold | EventsWanted]] = []

    def come(self, *agents: str) -> None:
        for agent in agents:
            if agent not in self.copies:
                self.copies[agent] = EventCopy(partial(self._tell_chief, agent))
            self.attached[agent] = None
            self.log.introduced(agent, self.copies[agent].history.segments())
            self.log.attached(self.attached)

    def lead(self, agent: str, term: int, *, told: tuple[str, ...] = (), num_recorded: int = 0) -> None:
        """The others have to come again."""
        self.chief, self.attached = agent, {}
        self.on_the_way.clear()
        copy = self.copies.setdefault(agent, EventCopy(partial(self._tell_chief, agent)))
        segments = [segment for each in told for segment in self.copies[each].history.segments()]
        self.log = EventLog(
            copy.history, term=term, agent_id=agent, send=self._send, told=segments, num_recorded=num_recorded
        )
        self.come(agent)

    def happen(self, *texts: str) -> None:
        for text in texts:
            self.log.record(kind="restart", text=text, generation=1, fields={})

    def deliver(self) -> None:
        while self.on_the_way:
            sender, receiver, said = self.on_the_way.popleft()
            if receiver == self.chief:
                self.log.heard(sender, said)
            else:
                self.copies[receiver].heard(said)

    def texts(self, agent: str) -> list[str]:
        return [each.text for each in self.copies[agent].history.since(0)]

    def _send(self, agent: str, said: EventsTold | EventsWanted) -> None:
        self.sent.append((agent, said))
        self.on_the_way.append((self.chief, agent, said))

    def _tell_chief(self, agent: str, said: EventsTold | EventsWanted) -> None:
        self.on_the_way.append((agent, self.chief, said))


def test_the_last_events_are_kept_and_all_are_counted() -> None:
    some = history(*range(1, 8), max_events=3)
    assert (numbers(some), some.last, some.floor) == ([5, 6, 7], 7, 4)
    assert some.counts["restart"] == 7
    assert not some.add(event(2)), "it was dropped before"
    assert [each.number for each in some.latest(2)] == [6, 7]


def test_long_events_are_fewer() -> None:
    some = History(max_bytes=1000)
    for number in range(1, 30):
        some.add(event(number, text="x" * 200))
    assert numbers(some) == [27, 28, 29]
    some.add(event(30, text="x" * 5000))
    assert numbers(some) == [30], "the last one, whatever it takes"


def test_of_two_events_with_one_number_that_of_the_later_term_counts() -> None:
    some = history(1, 2, 3)
    assert not some.add(event(3))
    assert some.add(event(3, term=2, kind="takeover"))
    assert not some.add(event(3))
    assert some.segments() == [(1, 1, 2), (2, 3, 3)]
    assert (some.counts["restart"], some.counts["takeover"]) == (2, 1)


def test_what_was_recorded_while_cut_off_is_forgotten() -> None:
    some = history(1, 2, 3, 4)
    some.agree([(1, 1, 2), (2, 3, 3)])
    assert numbers(some) == [1, 2, 4], "what the others did in place of the fourth is not known yet"


def test_the_latest_events_that_are_lacking_are_asked_for_first() -> None:
    asking = CatchingUp(history(5, 6), [(1, 1, 6), (2, 7, 7 + AT_ONCE)])
    assert asking.next() == (8, 7 + AT_ONCE)
    assert asking.next() is None, "an answer is due"
    assert not asking.answered(99)
    assert asking.answered(8)
    assert asking.next() == (7, 7)
    assert asking.answered(7)
    assert asking.next() == (1, 4)
    assert asking.answered(1)
    assert asking.next() is None


def test_events_that_would_not_be_kept_are_not_asked_for() -> None:
    some = history(7, 8, 9, max_events=2)
    assert CatchingUp(some, [(1, 1, 9)]).next() is None


def test_a_coordinator_begins_above_all_that_anybody_has_seen() -> None:
    assert first_number(History(), [], 0) == 1
    assert first_number(history(1, 2), [(1, 1, 5)], 4) == 6
    assert first_number(history(1, 2), [], 4) == 4 + UNSEEN
    assert is_covered(history(1, 2), [(1, 2, 5)], 6)
    assert not is_covered(history(1, 2), [(1, 4, 5)], 6)
    assert is_covered(history(1, 2, 3, max_events=1), [], 4)


@pytest.mark.parametrize(("num_agents", "num_heirs"), [(1, 0), (2, 1), (SMALL_JOB, 15), (SMALL_JOB + 1, NUM_HEIRS)])
def test_a_few_agents_succeed_the_coordinator(num_agents: int, num_heirs: int) -> None:
    agents = [str(number) for number in range(num_agents)]
    assert heirs(agents, "0") == agents[1:][:num_heirs]


def test_an_heir_is_told_what_happens_and_asks_for_what_has_happened() -> None:
    job = Job()
    job.lead("a", 1)
    texts = [str(number) for number in range(3 * AT_ONCE)]
    job.happen(*texts)
    job.come("b")
    job.happen("now")
    job.deliver()
    assert job.texts("b") == [*texts, "now"]
    assert max(len(said.events) for _, said in job.sent if isinstance(said, EventsTold)) == AT_ONCE


def test_what_happened_is_known_after_two_coordinators_have_died() -> None:
    job = Job()
    job.lead("a", 1)
    job.come("b", "c")
    job.happen("one")
    job.deliver()
    job.lead("b", 2, told=("c",), num_recorded=1)
    job.happen("two")
    job.come("c")
    job.deliver()
    job.lead("c", 3, num_recorded=2)
    job.happen("three")
    assert job.texts("c") == ["one", "two", "three"]
    assert [(each.number, each.term) for each in job.copies["c"].history.since(0)] == [(1, 1), (2, 2), (3, 3)]
    assert job.log.is_complete


def test_a_coordinator_without_a_copy_says_so_and_gets_it_from_whoever_has_one() -> None:
    job = Job()
    job.lead("a", 1)
    job.come("b", *map(str, range(SMALL_JOB)))
    job.happen("one", "two")
    job.deliver()
    late = str(SMALL_JOB - 1)
    assert job.texts(late) == []
    job.lead(late, 2, num_recorded=1)
    assert not job.log.is_complete
    job.happen("three")
    job.come("0", "b")
    job.deliver()
    assert job.texts(late) == job.texts("0") == ["one", "two", "three"]


def test_a_coordinator_that_was_cut_off_gives_way_to_what_the_others_recorded() -> None:
    job = Job()
    job.lead("a", 1)
    job.come("b", "c")
    job.happen("one")
    job.deliver()
    cut_off = job.copies["a"].history
    cut_off.add(event(2, text="alone"))
    cut_off.add(event(3, text="alone again"))
    job.lead("b", 2, told=("c",))
    job.come("c")
    job.happen("two")
    job.come("a")
    job.happen("three")
    job.deliver()
    assert job.texts("a") == job.texts("b") == job.texts("c") == ["one", "two", "three"]


def test_an_event_costs_a_large_job_no_more_than_its_heirs() -> None:
    job = Job()
    job.lead("a", 1)
    job.come(*map(str, range(100)))
    job.deliver()
    job.sent.clear()
    job.happen("one")
    assert len(job.sent) == NUM_HEIRS


def test_whoever_becomes_an_heir_gets_what_has_happened() -> None:
    job = Job()
    job.lead("a", 1)
    job.come(*map(str, range(SMALL_JOB + 5)))
    job.happen("one")
    job.deliver()
    for agent in map(str, range(SMALL_JOB)):  # some had a copy while the job was small
        del job.attached[agent]
    job.log.attached(job.attached)
    job.deliver()
    assert job.texts(str(SMALL_JOB + 4)) == ["one"]

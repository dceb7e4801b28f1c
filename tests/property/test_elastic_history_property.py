"""Histories that are brought together agree, whatever each of them knew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.elastic.job.history import CatchingUp, Event, History

NUMBERS = st.lists(st.integers(1, 300), max_size=200)


def event(number: int, term: int) -> Event:
    return Event(number=number, term=term, kind="x", text="", at=1.0, generation=1)


def history(numbers: list[int], term: int, max_events: int) -> History:
    found = History(max_events=max_events)
    for number in numbers:
        found.add(event(number, term))
    return found


def catch_up(reader: History, writer: History) -> int:
    """Let ``reader`` ask ``writer`` for all that it lacks; returns how often it asked."""
    reader.agree(writer.segments())
    asking = CatchingUp(reader, writer.segments())
    num_asked = 0
    while (wanted := asking.next()) is not None:
        num_asked += 1
        for each in writer.between(*wanted):
            reader.add(each)
        assert asking.answered(wanted[0])
    return num_asked


@given(NUMBERS, NUMBERS, st.integers(1, 2))
def test_after_catching_up_a_copy_has_all_that_the_coordinator_has(
    ours: list[int], theirs: list[int], their_term: int
) -> None:
    reader, writer = history(ours, 1, 1000), history(theirs, their_term, 1000)
    catch_up(reader, writer)
    held = {each.number: each.term for each in reader.since(0)}
    assert held == dict.fromkeys(ours, 1) | dict.fromkeys(theirs, their_term)
    assert catch_up(reader, writer) == 0


@given(NUMBERS, NUMBERS, st.integers(1, 20))
def test_a_short_memory_keeps_the_latest_and_asks_for_no_more(
    ours: list[int], theirs: list[int], max_events: int
) -> None:
    reader, writer = history(ours, 1, max_events), history(theirs, 1, 1000)
    catch_up(reader, writer)
    held = [each.number for each in reader.since(0)]
    assert held == sorted(set(held))
    assert len(held) <= max_events
    assert all(number > reader.floor for number in held)
    assert all(number in held for number in theirs if number > reader.floor)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), max_size=80))
def test_segments_tell_exactly_what_is_there(added: list[tuple[int, int]]) -> None:
    some = History()
    for number, term in added:
        some.add(event(number, term))
    told = {number: term for term, first, last in some.segments() for number in range(first, last + 1)}
    assert told == {each.number: each.term for each in some.since(0)}
    assert sum(some.counts.values()) == len(some)

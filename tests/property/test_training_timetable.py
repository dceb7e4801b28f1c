"""Whatever the numbers, each fragment is synchronised once in a period, and the end synchronises all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.training.sync.fragments import split_into_fragments
from multiworld.training.sync.timetable import Timetable


@st.composite
def timetables(draw: st.DrawFn) -> Timetable:
    every = draw(st.integers(1, 40))
    fragments = draw(st.integers(1, every))
    overlap = draw(st.integers(0, every // fragments - 1))
    return Timetable(every=every, fragments=fragments, overlap=overlap, total=draw(st.integers(1, 150)))


@given(timetables())
def test_what_is_sent_is_applied_before_it_is_sent_again(table: Timetable) -> None:
    assert table.total is not None
    sent_at: dict[int, int] = {}
    applied = dict.fromkeys(range(table.fragments), -1)
    for step in range(table.total):
        due = table.due(step)
        for fragment in due.send:
            assert fragment not in sent_at
            sent_at[fragment] = step
        for fragment in due.apply:
            assert step - sent_at.pop(fragment) in (0, table.overlap)
            assert step - applied[fragment] <= table.every
            applied[fragment] = step
        assert tuple(sorted(sent_at)) == table.under_way(step)
        assert not (table.commits(step) and sent_at)  # members come and go with nothing under way
        assert due.is_last == (step == table.total - 1)
    assert set(applied.values()) == {table.total - 1}


@given(timetables())
def test_one_fragment_a_step_until_the_end(table: Timetable) -> None:
    assert table.total is not None
    for step in range(table.total - 1):
        due = table.due(step)
        assert len(due.send) <= 1
        assert len(due.apply) <= 1


@given(timetables(), st.data())
def test_any_period_sends_as_many_bytes_as_the_model_has_and_the_end_once_more(
    table: Timetable, data: st.DataObject
) -> None:
    """A period is any ``every`` steps before the end, and before what the end sends in the place of others."""
    assert table.total is not None
    sizes = data.draw(st.lists(st.integers(1, 1000), min_size=table.fragments, max_size=table.fragments))
    sent = [table.due(step).send for step in range(table.total)]
    for first in range(table.total - table.every - table.overlap):
        of_period = [fragment for fragments in sent[first : first + table.every] for fragment in fragments]
        assert sorted(of_period) == list(range(table.fragments))
        assert sum(sizes[fragment] for fragment in of_period) == sum(sizes)
    num_bytes = sum(sizes[fragment] for fragments in sent for fragment in fragments)
    periods = -(-table.total // table.every)
    assert num_bytes <= (periods + 1) * sum(sizes)


@given(timetables())
def test_rounds_cover_each_step_once_and_end_with_an_outer_step(table: Timetable) -> None:
    assert table.total is not None
    rounds = [table.steps_of(number) for number in range(table.round_of(table.total))]
    assert [step for part in rounds for step in part] == list(range(table.total))
    for number, part in enumerate(rounds):
        assert {table.round_of(step) for step in part} == {number}
        assert [table.commits(step) for step in part] == [False] * (len(part) - 1) + [True]
    assert not table.steps_of(len(rounds))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000)), min_size=1, max_size=40), st.data())
def test_each_parameter_is_in_one_fragment(params: list[tuple[int, int]], data: st.DataObject) -> None:
    sizes = {f"layers.{block}.{index}": size for index, (block, size) in enumerate(params)}
    fragments = data.draw(st.integers(1, len(sizes)))
    split = split_into_fragments(sizes, fragments)
    assert len(split) == fragments
    assert all(split)
    assert sorted(name for names in split for name in names) == sorted(sizes)

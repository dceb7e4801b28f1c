"""Traces are read with their lines, and drawn from numbers that the caller gives."""

from __future__ import annotations

import pickle
import random

import pytest

from multiworld.training.errors import TraceError
from multiworld.training.simulating.trace import JOIN, LOSS, Change, Event, drawn_trace, read_trace, trace_of

TEXT = """\
time_s,event,node
# three nodes at first
0,join,a
0, add ,b

0,JOIN,c
90.5,loss,b
90.5,remove,a
120,join,b
"""


def test_a_trace_is_read_with_one_change_for_each_moment() -> None:
    trace = read_trace("t.csv", TEXT)
    assert trace.changes == (
        Change(at_s=0.0, joined=("a", "b", "c")),
        Change(at_s=90.5, lost=("b", "a")),
        Change(at_s=120.0, joined=("b",)),
    )
    assert (trace.name, trace.end_s) == ("t.csv", 120.0)
    assert (trace.nodes_at_start, trace.num_losses, trace.num_joins) == (3, 2, 1)
    assert (trace.most_nodes, trace.mean_s) == (3, 60.0)


def test_times_may_be_milliseconds() -> None:
    assert read_trace("t.csv", "0,add,a\n1500,add,b", unit_s=0.001).changes[1].at_s == 1.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "t.csv: there is no event in it"),
        ("0,join,a\n5,b", "t.csv: line 2: expected TIME,join|loss,NODE, found '5,b'"),
        ("0,join,", "t.csv: line 1: expected TIME,join|loss,NODE, found '0,join,'"),
        ("0,jion,a", "t.csv: line 1: expected join or loss, found 'jion'"),
        ("x,join,a", "t.csv: line 1: expected a time, at least 0, found 'x'"),
        ("-1,join,a", "t.csv: line 1: expected a time, at least 0, found '-1'"),
        ("nan,join,a", "t.csv: line 1: expected a time, at least 0, found 'nan'"),
        ("0,join,a\n\n1,join,a", "t.csv: line 3: a joins, but it is there already"),
        ("0,join,a\n1,loss,b", "t.csv: line 2: b is lost, but it is not there then"),
        ("0,join,a\n0,loss,a", "t.csv: line 2: a is lost, but it is not there then"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(text: str, told: str) -> None:
    with pytest.raises(TraceError) as raised:
        read_trace("t.csv", text)
    assert str(raised.value) == told
    assert str(pickle.loads(pickle.dumps(raised.value))) == told


def test_events_without_a_file_are_told_with_their_time() -> None:
    with pytest.raises(TraceError, match="mine: at 4 s: a is lost, but it is not there then"):
        trace_of("mine", [Event(at_s=4.0, kind=LOSS, node="a")])


def test_drawn_losses_come_as_often_as_was_asked() -> None:
    nodes = [f"n{number}" for number in range(1000)]
    trace = drawn_trace("t", nodes, mean_s=10.0, end_s=5000.0, uniform=random.Random(1).random)
    assert trace.nodes_at_start == 1000
    assert 440 <= trace.num_losses <= 560
    assert trace.end_s == 5000.0


def test_the_same_numbers_draw_the_same_trace() -> None:
    drawn = [
        drawn_trace("t", ["a", "b", "c"], mean_s=10.0, end_s=300.0, uniform=random.Random(4).random, back_after_s=20.0)
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0].num_losses > 10
    assert drawn[0].num_joins > 10


def test_lost_nodes_are_there_again_after_their_time() -> None:
    trace = drawn_trace("t", ["a", "b"], mean_s=50.0, end_s=1000.0, uniform=random.Random(2).random, back_after_s=30.0)
    events = [(each.at_s, JOIN, node) for each in trace.changes for node in each.joined]
    events += [(each.at_s, LOSS, node) for each in trace.changes for node in each.lost]
    losses = [(at_s, node) for at_s, kind, node in sorted(events) if kind == LOSS]
    joins = [(at_s, node) for at_s, kind, node in sorted(events) if kind == JOIN and at_s > 0]
    assert joins == [(at_s + 30.0, node) for at_s, node in losses if at_s + 30.0 < 1000.0]


def test_the_last_nodes_are_not_lost() -> None:
    trace = drawn_trace("t", ["a", "b", "c", "d"], mean_s=1.0, end_s=1000.0, uniform=random.Random(3).random, fewest=3)
    assert trace.num_losses == 1

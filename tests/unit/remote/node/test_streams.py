"""Streams of a node: one waits until another makes what it needs, and frees wait until all have come by."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from multiworld.remote.node.streams import Streams
from multiworld.remote.node.table import Table
from multiworld.remote.protocol.records import Passed


class At:
    """A stream that has executed so many records."""

    def __init__(self, position: int = 0) -> None:
        self.position = position


class Waiting:
    """A thread that waits for an id. ``outcome``: what ``wait_made`` returned."""

    def __init__(self, streams: Streams, id_: int) -> None:
        self.outcome: bool | None = None
        self._streams, self._id = streams, id_
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()
        while id_ not in streams.awaited:
            threading.Event().wait(0.0005)

    def join(self) -> bool | None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.outcome

    def _wait(self) -> None:
        self.outcome = self._streams.wait_made(self._id)


@pytest.fixture
def table() -> Table:
    return {}


@pytest.fixture
def streams(table: Table) -> Iterator[Streams]:
    made = Streams(table)
    for number in range(3):
        made.begin(number, At())
    yield made
    made.end_all()


def test_a_stream_waits_until_another_has_made_what_it_needs(streams: Streams, table: Table) -> None:
    waiting = Waiting(streams, 7)
    table[6] = torch.zeros(1)
    streams.tell_made()
    assert waiting.outcome is None
    table[7] = torch.zeros(1)
    streams.tell_made()
    assert waiting.join() is True
    assert streams.awaited == []
    assert streams.wait_made(7)


def test_a_wait_ends_when_nobody_is_left_who_could_make_it(streams: Streams) -> None:
    waiting = Waiting(streams, 7)
    streams.end(1)
    assert waiting.outcome is None
    streams.end(2)
    assert waiting.join() is False
    assert not streams.wait_made(8)


def test_a_wait_ends_when_nothing_is_executed_any_more(streams: Streams) -> None:
    waiting = Waiting(streams, 7)
    streams.end_all()
    assert waiting.join() is False


def test_a_wait_for_what_is_freed_ends(streams: Streams) -> None:
    waiting = Waiting(streams, 7)
    streams.free([7])
    assert waiting.join() is False


def test_what_several_streams_may_use_is_freed_once_all_have_come_by(table: Table) -> None:
    one, two = At(3), At(3)
    streams = Streams(table)
    streams.begin(0, At())
    streams.begin(1, one)
    streams.begin(2, two)
    table[7], table[8] = torch.zeros(1), torch.zeros(1)
    streams.release((7,), (Passed(1, 5), Passed(2, 3)))
    streams.release((8,), (Passed(2, 4),))
    two.position = 4
    streams.free_passed()
    assert list(table) == [7]
    one.position = 5
    streams.free_passed()
    assert (table, streams.releases) == ({}, [])


def test_a_stream_that_has_ended_holds_nothing_back_and_its_records_stay_counted(table: Table) -> None:
    streams = Streams(table)
    streams.begin(0, At(2))
    streams.begin(1, At(3))
    table[7] = torch.zeros(1)
    streams.release((7,), (Passed(1, 5),))
    streams.end(1)
    assert table == {}
    assert streams.num_executed == 5

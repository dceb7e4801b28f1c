"""The launcher hears of all nodes, also of those that have not come, and once more at the end."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace

from multiworld.remote.connecting.publishing import ABSENT, Publisher, news_of
from multiworld.remote.session.statistics import NodesStatistics
from multiworld.remote.session.waits import LineWaits
from multiworld.world.launcher.remote_nodes import MAX_LINES, MAX_NODES, RemoteNodes

from ..fake_node import FakeNode, values


def statistics(fake: FakeNode) -> NodesStatistics:
    return NodesStatistics.of([fake.session], fake.sync_points)


def test_nodes_that_have_not_come_are_told_of(fake: FakeNode) -> None:
    kept = fake.node.ones(3)
    values(kept)
    news = news_of(0, [1, 2], statistics(fake), [])
    here, absent = news.nodes
    assert (here.number, here.lost, here.num_tensors, here.fetched_bytes) == (1, "", 1, 12)
    assert (absent.number, absent.lost, absent.generation) == (2, ABSENT, -1)
    assert news.syncs == 1


def test_what_is_too_much_is_left_out(fake: FakeNode) -> None:
    lines = [LineWaits(f"{'x' * 500}{number}") for number in range(MAX_LINES + 5)]
    news = news_of(0, range(1, MAX_NODES + 4), statistics(fake), lines)
    assert len(news.nodes) == MAX_NODES
    assert news.left_out == 3
    assert len(news.lines) == MAX_LINES
    assert news.lines[0].line.endswith("x0")  # where the line is stands at the end


def test_nodes_that_are_lost_are_never_left_out(fake: FakeNode) -> None:
    fake.node.ones(3)
    alive = statistics(fake)
    report = alive.nodes[1]
    nodes = {number: replace(report, number=number) for number in range(1, MAX_NODES + 3)}
    news = news_of(0, range(1, MAX_NODES + 4), replace(alive, nodes=nodes), [])
    assert [node.number for node in news.nodes if node.lost] == [MAX_NODES + 3]
    assert [node.number for node in news.nodes] == [*range(1, MAX_NODES), MAX_NODES + 3]


def test_nodes_that_are_being_released_are_not_told_of_as_lost(fake: FakeNode) -> None:
    told: queue.Queue[RemoteNodes] = queue.Queue()
    ended = [False, True]
    publisher = publisher_of(fake, told, has_ended=lambda: ended.pop(0))
    publisher.publish()
    publisher.publish()
    assert not ended
    assert told.qsize() == 1


def publisher_of(
    fake: FakeNode, told: queue.Queue[RemoteNodes], has_ended: Callable[[], bool] = lambda: False
) -> Publisher:
    return Publisher(
        rank=0, numbers=lambda: [1], statistics=lambda: statistics(fake), tell=told.put, has_ended=has_ended
    )


def test_the_end_is_told_with_what_waited(fake: FakeNode) -> None:
    told: queue.Queue[RemoteNodes] = queue.Queue()
    publisher = publisher_of(fake, told)
    publisher.start()
    assert not told.get(timeout=10).ended
    values(fake.node.ones(3))
    publisher.close()
    publisher.close()
    last = [told.get(timeout=10) for _ in range(told.qsize())][-1]
    assert last.ended
    assert [(line.operations, line.num_waits) for line in last.lines] == [("fetch", 1)]

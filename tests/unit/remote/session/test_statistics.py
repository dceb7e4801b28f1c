"""Statistics: counts of all generations of a node, and what those say that answer."""

from __future__ import annotations

import torch

from multiworld.remote.session.statistics import NodesStatistics, asked, reports

from ..fake_node import FakeNode, values


def test_each_node_has_its_counts_and_says_what_it_holds() -> None:
    with FakeNode(1) as one, FakeNode(2) as two:
        kept = [one.node.ones(3), one.node.send(torch.zeros(10))]
        other = two.node.ones(2)
        for tensor in (*kept, other):
            values(tensor)
        found = NodesStatistics.of([one.session, two.session], one.sync_points)
        first, second = found.nodes[1], found.nodes[2]
        assert (first.num_tensors, second.num_tensors) == (2, 1)
        assert first.lost == ""
        assert first.sent_bytes == 40
        assert first.fetched_bytes == 12 + 40
        assert second.fetched_bytes == 8
        assert found.fetched_bytes == 60
        assert first.memory_bytes is not None
        assert first.memory_bytes > 1_000_000
        assert found.num_commands == first.num_commands + second.num_commands
        assert found.syncs == 2  # of the sync points of the first
        assert first.host
        assert first.pid


def test_a_lost_node_keeps_its_counts_and_is_not_asked() -> None:
    node = FakeNode(1)
    values(node.node.ones(3))
    node.lose("killed")
    again = FakeNode(1)
    with again:
        values(again.node.ones(2))
        found = reports([node.session])
        assert "killed" in found[1].lost
        assert found[1].num_tensors is None
        both = reports([node.session, again.session])
        assert both[1].lost == ""
        assert both[1].fetched_bytes == 12 + 8


def test_a_node_that_does_not_answer_is_not_waited_for_for_long(fake: FakeNode) -> None:
    fake.session.start_statistics = lambda take: None  # type: ignore[method-assign]
    assert asked([fake.session], timeout_s=0.01) == {}

"""What a master tells the launcher of its nodes: it travels, and what is not small is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multiworld.world.launcher.news import WORKER_NEWS
from multiworld.world.launcher.remote_nodes import MAX_LENGTH, MAX_NODES, RemoteNode, RemoteNodes, RemoteWaits


def remote_node(number: int, lost: str = "") -> RemoteNode:
    return RemoteNode(
        number=number,
        host="a",
        pid=7,
        generation=1,
        lost=lost,
        num_commands=10,
        num_unconfirmed=2,
        sent_bytes=400,
        fetched_bytes=4,
        num_waits=0,
        num_failures=0,
        num_tensors=None if lost else 3,
        memory_bytes=None if lost else 10**9,
    )


LINE = RemoteWaits(line="a.py:3 in f", operations="item", num_waits=2, waited_s=0.5, longest_s=0.25, received_bytes=8)


def test_it_travels() -> None:
    news = RemoteNodes(rank=0, syncs=2, nodes=(remote_node(1), remote_node(2, "it died")), lines=(LINE,), ended=True)
    assert WORKER_NEWS.decode(WORKER_NEWS.encode(news)) == news


def test_what_is_not_small_is_refused() -> None:
    with pytest.raises(ValueError, match="lost is out of range"):
        remote_node(1, "x" * (MAX_LENGTH + 1))
    with pytest.raises(ValueError, match="num_waits is out of range"):
        replace(LINE, num_waits=2**70)
    with pytest.raises(ValueError, match="too many"):
        RemoteNodes(rank=0, syncs=0, nodes=tuple(remote_node(1) for _ in range(MAX_NODES + 1)))

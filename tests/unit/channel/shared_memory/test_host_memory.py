"""The memory that ranks lend each other: when there is none."""

from __future__ import annotations

import os

from multiworld.channel.shared_memory.host_memory import HostMemory
from tests.unit.channel.collectives.fake_ports import FakeLender


def test_a_rank_without_neighbours_makes_no_memory() -> None:
    memory = HostMemory("w", 0, 2)
    lender = FakeLender(can=False)
    memory.add(1, lender)
    memory.offer()
    assert memory.own is None
    assert memory.ready(1) is False
    assert not lender.lent


def test_memory_that_comes_after_the_end_is_not_kept() -> None:
    lending, memory = HostMemory("w", 0, 2), HostMemory("w", 1, 2)
    lender = FakeLender()
    lending.add(1, lender)
    lending.offer()
    (descriptor,) = lender.lent
    assert memory.lent(0, os.dup(descriptor)) == ""
    memory.close(RuntimeError("the world has ended"))
    assert "its world has ended" in memory.lent(0, descriptor)
    assert not memory.theirs

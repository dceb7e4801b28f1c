"""How much memory a process holds, and held meanwhile."""

from __future__ import annotations

import mmap

from multiworld.bench.memory_member import Peak, held_bytes
from multiworld.testing import trim, wait_until

SIZE_BYTES = 32 << 20
SLACK_BYTES = 4 << 20  # what else happens in a process that runs tests


def test_memory_counts_once_it_is_touched_and_until_it_is_unmapped() -> None:
    trim()
    before = held_bytes()
    with mmap.mmap(-1, SIZE_BYTES) as shared:
        untouched = held_bytes() - before
        _touch(shared)
        touched = held_bytes() - before
    assert abs(untouched) < SLACK_BYTES
    assert abs(touched - SIZE_BYTES) < SLACK_BYTES
    assert abs(held_bytes() - before) < SLACK_BYTES


def test_the_peak_is_above_what_was_held_as_it_began() -> None:
    trim()
    with mmap.mmap(-1, SIZE_BYTES) as kept:
        _touch(kept)
        with Peak() as peak, mmap.mmap(-1, SIZE_BYTES) as more:
            _touch(more)
            assert wait_until(lambda: peak.growth_bytes > SIZE_BYTES - SLACK_BYTES, 5.0)
    assert peak.growth_bytes < SIZE_BYTES + SLACK_BYTES


def test_nothing_taken_is_no_peak() -> None:
    with Peak() as peak:
        pass
    assert peak.growth_bytes < SLACK_BYTES


def _touch(memory: mmap.mmap) -> None:
    for page in range(0, SIZE_BYTES, mmap.PAGESIZE):
        memory[page] = 1

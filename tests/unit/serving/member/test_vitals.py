"""What a process takes of its host."""

from __future__ import annotations

import time

from multiworld.process.facts import parse_pss, parse_rss
from multiworld.serving.member.vitals import Vitals

ROLLUP = "5581d2a2f000-7ffd [rollup]\nRss:  2048 kB\nPss:  1024 kB\nPss_Dirty: 8 kB\n"


def test_numbers_of_the_kernel_are_bytes() -> None:
    assert parse_rss("9999 25 3 1 0 7 0\n", 4096) == 25 * 4096
    assert parse_pss(ROLLUP) == 1 << 20
    assert parse_rss("", 4096) is None
    assert parse_pss("") is None


def test_this_process_has_memory_and_takes_time() -> None:
    vitals = Vitals()
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass
    assert vitals.is_due
    vitals.look()
    assert not vitals.is_due
    read = vitals.read()
    assert read.cpu is not None
    assert 0 < read.cpu < 64
    assert read.rss_bytes is not None
    assert read.rss_bytes > 1 << 20
    assert read.pss_bytes is None or 0 < read.pss_bytes <= 2 * read.rss_bytes

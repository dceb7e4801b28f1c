"""The last lines of a member: numbered, bounded, and followed without gaps that nobody hears of."""

from __future__ import annotations

from multiworld.serving.hosts.logs.recent_lines import KEPT_BYTES, LinesTold, RecentLines
from multiworld.wire.messages import from_json, to_json


def test_lines_are_followed_from_where_a_reader_stood() -> None:
    recent = RecentLines()
    recent.take(b"one\ntwo\nthree\n")
    first = recent.last(2)
    assert (first.lines, first.number, first.left_out) == (("two", "three"), 3, 0)
    recent.take(b"four\n\xff\n")
    assert recent.since(first.number) == LinesTold(lines=("four", "\ufffd"), number=5)
    assert recent.since(5).lines == recent.last(0).lines == ()
    assert recent.last(99).lines[0] == "one"


def test_what_is_no_longer_kept_is_counted() -> None:
    recent = RecentLines()
    for number in range(1000):
        recent.take(b"%03d " % number + b"x" * 200 + b"\n")
    told = recent.since(10)
    assert sum(map(len, told.lines)) <= KEPT_BYTES
    assert told.left_out == 1000 - 10 - len(told.lines) > 0
    assert told.lines[-1].startswith("999 ")


def test_lines_travel_as_json() -> None:
    told = LinesTold(lines=("a", "b"), number=7, left_out=1)
    assert from_json(LinesTold, to_json(told)) == told

"""The output of processes, cut into lines: bytes in, bytes out."""

from __future__ import annotations

from multiworld.process.logs.lines import LONGEST_HELD, TAIL_BYTES, Labeller, LineBuffer, Tail


def test_a_line_without_an_end_is_not_held_for_ever() -> None:
    lines = LineBuffer()
    assert lines.feed(b"x" * LONGEST_HELD) == b""
    assert lines.feed(b"y") == b"x" * LONGEST_HELD + b"y"


def test_a_progress_bar_keeps_its_prefix() -> None:
    label = Labeller(b"[0] ")
    assert label.label(b"\r 10%") == b"[0] \r[0]  10%"
    assert label.label(b"\r 20%\r") == b"\r[0]  20%\r"
    assert label.label(b"\nnext\r\n") == b"\n[0] next\r\n"


def test_the_tail_is_bounded_and_begins_with_a_whole_line() -> None:
    tail = Tail()
    for number in range(10_000):
        tail.feed(b"line %d\n" % number)
    assert tail.lines()[-1] == "line 9999"
    assert tail.lines()[0].startswith("line ")
    assert sum(len(line) + 1 for line in tail.lines()) <= TAIL_BYTES


def test_the_tail_shows_a_progress_bar_as_a_terminal_would() -> None:
    tail = Tail()
    tail.feed(b"\r 10%\r 20%\r 30%\ndone\r\n")
    assert tail.lines() == [" 30%", "done"]

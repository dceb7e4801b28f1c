"""A text that was cut says so."""

from __future__ import annotations

from multiworld.wire.shortened import beginning, end, shortened


def test_a_text_for_which_there_is_room_stays() -> None:
    assert [cut("12345", 5) for cut in (shortened, beginning, end)] == ["12345"] * 3


def test_a_cut_is_marked() -> None:
    assert shortened("123456", 5) == "1234…"
    assert beginning("x" * 2000 + "y", 300) == "x" * 300 + "… (1,701 more characters)"
    assert end("a\nb\nc", 3) == "... 2 characters left out ...\nb\nc"

"""How server-sent events are written, and what a reader that comes again says."""

from __future__ import annotations

import pytest

from multiworld.observe.event_stream import event, last_number


def test_an_event_has_its_fields_on_lines_of_their_own() -> None:
    assert event('{"a":1}', name="status", event_id="run:7", retry_ms=500) == (
        b'retry: 500\nid: run:7\nevent: status\ndata: {"a":1}\n\n'
    )


def test_parts_of_the_data_stand_on_one_line() -> None:
    assert event(b"[1,", memoryview(b"2"), "]") == b"data: [1,2]\n\n"


@pytest.mark.parametrize(
    ("last_id", "run", "number"),
    [
        ("7", "", 7),
        ("a1:7", "a1", 7),
        ("a1:7", "b2", 0),
        ("7", "a1", 0),
        ("a1:7", "", 0),
        ("", "", 0),
        ("-7", "", 0),
        ("x", "", 0),
        ("²", "", 0),
        ("9" * 19, "", 0),
    ],
)
def test_only_a_number_of_the_same_run_is_gone_on_from(last_id: str, run: str, number: int) -> None:
    assert last_number(last_id, run) == number

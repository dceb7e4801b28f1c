"""However output is cut into chunks, its bytes stay what they were, and its lines whole."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from multiworld.process.logs.lines import Labeller, LineBuffer, LineFilter, Tail

OUTPUT = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\xff\x00", b"keep"]) | st.binary(max_size=6)).map(
    b"".join
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[first:last] for first, last in itertools.pairwise(bounds)]


@given(OUTPUT, st.lists(st.integers(0, 1000)))
def test_a_line_buffer_gives_back_every_byte_and_only_whole_lines(output: bytes, places: list[int]) -> None:
    lines = LineBuffer()
    whole = [lines.feed(chunk) for chunk in cut(output, places)]
    assert all(text.endswith(b"\n") for text in whole if text)
    rest = lines.take()
    assert b"\n" not in rest
    assert b"".join(whole) + rest == output


@given(OUTPUT, st.lists(st.integers(0, 1000)))
def test_a_prefix_is_put_where_it_would_be_without_chunks(output: bytes, places: list[int]) -> None:
    label, at_once = Labeller(b"[P]"), Labeller(b"[P]")
    labelled = b"".join(label.label(chunk) for chunk in cut(output, places))
    if b"\r" not in output:
        assert labelled == b"".join(b"[P]" + line + b"\n" for line in output.split(b"\n"))[: len(labelled)]
    assert labelled.replace(b"[P]", b"") == at_once.label(output).replace(b"[P]", b"") == output.replace(b"[P]", b"")


@given(OUTPUT, st.lists(st.integers(0, 1000)))
def test_a_filter_passes_exactly_the_matching_lines(output: bytes, places: list[int]) -> None:
    lines = LineFilter(["keep"])
    passed = b"".join(lines.feed(chunk) for chunk in cut(output, places)) + lines.finish()
    assert passed == b"".join(part for part in _lines(output) if b"keep" in part)


@given(OUTPUT, st.lists(st.integers(0, 1000)))
def test_the_tail_does_not_depend_on_chunks(output: bytes, places: list[int]) -> None:
    tail, at_once = Tail(), Tail()
    for chunk in cut(output, places):
        tail.feed(chunk)
    at_once.feed(output)
    assert tail.lines() == at_once.lines()


def _lines(output: bytes) -> list[bytes]:
    parts = output.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])

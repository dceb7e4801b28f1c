"""What stays the same in a data file."""

from __future__ import annotations

import pytest

from multiworld.training.checkpoint.pattern import CHUNK_BYTES, Pattern

ITEMS = [("step", 2), ("a", 7), ("b", 5), ("lr", 3), ("c", 4)]
RANGES = {
    "a": (b"<a", slice(0, 3), b"a>"),
    "b": (b"<b", slice(8, 9), b"b>"),
    "c": (b"<", slice(4, 6), b">"),
}


def test_a_file_is_what_stays_the_same_with_new_values_in_it() -> None:
    pattern = Pattern.of(ITEMS, RANGES)
    packed = {"step": b"12", "lr": b"0.1"}
    assert pattern.takes(packed)
    assert b"".join(pattern.filled(memoryview(b"AAA.CC..B"), packed)) == b"12<aAAAa><bBb>0.1<CC>"
    packed = {"step": b"13", "lr": b"0.2"}
    assert b"".join(pattern.filled(memoryview(b"aaa.cc..b"), packed)) == b"13<aaaaa><bbb>0.2<cc>"


def test_only_the_values_between_the_tensors_are_packed_again() -> None:
    assert Pattern.of(ITEMS, RANGES).lengths == {"step": 2, "lr": 3}


@pytest.mark.parametrize(
    "packed",
    [
        {"step": b"123", "lr": b"0.1"},
        {"step": b"1", "lr": b"0.1"},
        {"step": b"12"},
        {"step": b"12", "lr": b"0.1", "new": b""},
        {"step": b"12", "rate": b"0.1"},
    ],
)
def test_values_of_another_length_do_not_fit(packed: dict[str, bytes]) -> None:
    assert not Pattern.of(ITEMS, RANGES).takes(packed)


def test_small_pieces_come_in_few_chunks_and_large_ones_are_not_copied() -> None:
    many = [(f"t{number}", 3) for number in range(1000)]
    ranges = {name: (b"(", slice(at, at + 1), b")") for at, (name, _) in enumerate(many)}
    pattern = Pattern.of(
        [*many, ("large", CHUNK_BYTES + 3)], {**ranges, "large": (b"(", slice(0, CHUNK_BYTES + 1), b")")}
    )
    memory = bytes(range(250)) * 1000
    chunks = list(pattern.filled(memoryview(memory), {}))
    assert b"".join(chunks) == b"".join(b"(%c)" % byte for byte in memory[:1000]) + b"(%b)" % memory[: CHUNK_BYTES + 1]
    assert len(chunks) == 3
    assert isinstance(chunks[1], memoryview)


def test_a_file_of_nothing_is_empty() -> None:
    assert b"".join(Pattern.of([], {}).filled(memoryview(b""), {})) == b""

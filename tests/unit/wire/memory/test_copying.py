"""Copies of memory, small and large, from any part of a buffer."""

from __future__ import annotations

import pytest

from multiworld.wire.memory.copying import SMALL_BYTES, copied, copy_into


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES, SMALL_BYTES + 1, 5 * SMALL_BYTES + 3])
def test_a_copy_holds_the_same_bytes_and_is_not_the_same_memory(size: int) -> None:
    original = bytearray(index % 251 for index in range(size + 10))
    expected = bytes(original[7 : 7 + size])
    copy = copied(memoryview(original)[7 : 7 + size])
    original[:] = bytes(len(original))
    assert bytes(copy) == expected


def test_memory_that_cannot_be_written_can_be_copied() -> None:
    assert bytes(copied(memoryview(bytes(2 * SMALL_BYTES)))) == bytes(2 * SMALL_BYTES)


@pytest.mark.parametrize("size", [0, 10, SMALL_BYTES + 1])
def test_copying_into_a_part_leaves_the_rest(size: int) -> None:
    target = bytearray(b"x" * (size + 4))
    copy_into(memoryview(target)[2 : 2 + size], memoryview(bytearray(b"y" * size)))
    assert target == b"xx" + b"y" * size + b"xx"

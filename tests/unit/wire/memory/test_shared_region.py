"""Memory that two processes share: its size is sealed, it leaves nothing behind, and a tensor in it keeps it mapped."""

from __future__ import annotations

import errno
import os
import resource

import pytest
import torch

from multiworld.wire.memory.shared_region import SharedRegion

SIZE = 1 << 20


@pytest.fixture
def region() -> tuple[SharedRegion, SharedRegion]:
    first, descriptor = SharedRegion.create(SIZE)
    second = SharedRegion(descriptor, SIZE)
    os.close(descriptor)
    return first, second


def mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:multiworld" in line for line in maps)


def test_what_one_writes_the_other_reads(region: tuple[SharedRegion, SharedRegion]) -> None:
    first, second = region
    for size in (1, 1000, 200_000):
        sent, came = bytearray(os.urandom(size)), bytearray(size)
        first.write(77, memoryview(sent))
        second.read(77, memoryview(came))
        assert came == sent


def test_a_tensor_in_it_is_shared_and_keeps_it_mapped() -> None:
    before = mappings()
    first, descriptor = SharedRegion.create(SIZE)
    second = SharedRegion(descriptor, SIZE)
    os.close(descriptor)
    ours, theirs = (each.tensor(128, 80).view(torch.float64) for each in (first, second))
    ours.fill_(2.5)
    del first, second
    assert theirs.tolist() == [2.5] * 10
    assert mappings() == before + 2
    del ours, theirs
    assert mappings() == before


def test_memory_that_is_forgotten_reads_as_zeros(region: tuple[SharedRegion, SharedRegion]) -> None:
    first, second = region
    first.write(0, memoryview(bytearray(b"x" * SIZE)))
    first.forget(0, SIZE // 2)
    came = bytearray(SIZE)
    second.read(0, memoryview(came))
    assert came == bytes(SIZE // 2) + b"x" * (SIZE // 2)


def test_nobody_can_shrink_it_under_the_feet_of_others() -> None:
    _, descriptor = SharedRegion.create(SIZE)
    for size in (0, SIZE // 2, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_memory_that_is_not_sealed_is_refused() -> None:
    descriptor = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    with pytest.raises(OSError, match="not 1048576 bytes of sealed memory"):
        SharedRegion(descriptor, SIZE)
    os.close(descriptor)


def test_memory_of_another_size_is_refused() -> None:
    _, descriptor = SharedRegion.create(SIZE)
    with pytest.raises(OSError, match="not 4096 bytes of sealed memory"):
        SharedRegion(descriptor, 4096)
    os.close(descriptor)


def test_a_pipe_is_refused() -> None:
    reading, writing = os.pipe()
    with pytest.raises(OSError):
        SharedRegion(reading, SIZE)
    os.close(reading)
    os.close(writing)


def test_without_descriptors_it_says_so_and_leaves_nothing() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = mappings()
    spare = os.dup(0)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            SharedRegion.create(SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert raised.value.errno == errno.EMFILE
    assert mappings() == before

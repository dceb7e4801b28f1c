"""How far the limit of descriptors is raised, and which descriptors strangers do not get."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from multiworld.wire.descriptors import is_out_of_descriptors, is_reserved, num_reserved, raise_limit


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_becomes_the_hard_one(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, limits[0]), hard))

    raise_limit()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)


def test_a_limit_is_never_lowered(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))

    raise_limit()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1], limits[1])


@pytest.mark.parametrize(("limit", "reserved"), [(64, 16), (1024, 256), (1 << 20, 256)])
def test_a_quarter_is_reserved_and_no_more_than_is_of_use(limit: int, reserved: int) -> None:
    assert num_reserved(limit) == reserved


def test_a_descriptor_is_reserved_when_all_below_the_reserve_are_taken(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 256 - 64 - 1:
            assert not is_reserved(opened[-1])
            opened.append(os.open(os.devnull, os.O_RDONLY))
        opened.append(os.open(os.devnull, os.O_RDONLY))
        assert is_reserved(opened[-1])
    finally:
        for each in opened:
            os.close(each)


def test_a_process_is_out_of_descriptors_for_some_errors_only() -> None:
    assert is_out_of_descriptors(OSError(errno.EMFILE, "too many"))
    assert not is_out_of_descriptors(OSError(errno.ECONNABORTED, "gone"))

"""Payloads that stay in the memory which they came through: a place is taken again only when nobody has it any more."""

from __future__ import annotations

import gc
import importlib.util
import os
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from multiworld.channel.payload.tensors import memory_of
from multiworld.channel.shared_memory import lent as lent_module
from multiworld.channel.shared_memory.lent import (
    LEFT_AT,
    MAX_KEPT_BYTES,
    MAX_SEGMENTS,
    NUM_PLACES,
    PAGE_BYTES,
    LentReader,
    LentSpace,
    LentWriter,
    Place,
    lent_bytes,
)
from multiworld.errors import ProtocolError
from multiworld.process.spawn.forking import fork
from multiworld.wire.memory.shared_region import SharedRegion

PAGES = 32
SIZE = PAGES * PAGE_BYTES
BEGIN = 2 * PAGE_BYTES


class Ends:
    """Both ends, each with a mapping of its own."""

    def __init__(self, reader: type[LentReader] = LentReader) -> None:
        own, self._descriptor = SharedRegion.create(BEGIN + SIZE)
        other = SharedRegion(self._descriptor, BEGIN + SIZE)
        self.writer = LentWriter(own, PAGE_BYTES, BEGIN, SIZE)
        self.reader = reader(other, PAGE_BYTES, BEGIN, SIZE)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def used_bytes(self) -> int:
        return 512 * os.fstat(self._descriptor).st_blocks

    def put(self, value: int, size_bytes: int) -> Place | None:
        tensor = torch.full((size_bytes,), value, dtype=torch.uint8)
        return self.writer.put([memory_of(tensor)], size_bytes)

    def bring(self, value: int, size_bytes: int) -> Tensor:
        place = self.put(value, size_bytes)
        assert place is not None
        return self.reader.tensor(place)


def is_full_of(tensor: Tensor, value: int) -> bool:
    return bool((tensor == value).all())


def test_what_came_stays_until_nothing_refers_to_it_any_more() -> None:
    ends = Ends()
    first = ends.bring(1, 20 * PAGE_BYTES)
    view = first[:10].view(2, 5)
    assert ends.put(2, 20 * PAGE_BYTES) is None
    del first
    assert ends.put(2, 20 * PAGE_BYTES) is None
    assert is_full_of(view, 1)
    del view
    assert is_full_of(ends.bring(2, 20 * PAGE_BYTES), 2)


def test_whoever_has_it_may_change_it() -> None:
    ends = Ends()
    first, second = ends.bring(1, 5000), ends.bring(2, 5000)
    first.fill_(9)
    assert is_full_of(second, 2)
    assert is_full_of(first, 9)
    assert first.data_ptr() % PAGE_BYTES == 0


def test_a_payload_of_several_segments_lies_there_as_one() -> None:
    ends = Ends()
    parts = [torch.arange(100, dtype=torch.uint8), torch.full((28,), 7, dtype=torch.uint8)]
    place = ends.writer.put([memory_of(part) for part in parts], 128)
    assert place is not None
    assert torch.equal(ends.reader.tensor(place), torch.cat(parts))


def test_it_outlives_both_ends_of_the_lent_memory() -> None:
    ends = Ends()
    tensor = ends.bring(3, 3 * PAGE_BYTES)
    del ends
    gc.collect()
    assert is_full_of(tensor, 3)


def test_what_was_thrown_away_on_another_thread_has_left() -> None:
    ends = Ends()
    held = [ends.bring(1, SIZE)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert ends.put(2, SIZE) is not None


def test_what_a_forked_child_may_have_never_leaves_its_place() -> None:
    """Whoever throws it away first: the other one may still read it."""
    ends = Ends()
    tensor = ends.bring(1, SIZE // 2)
    seen, says = os.pipe()
    waits, goes = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.close(goes)
            os.read(waits, 1)
            held = bytes(memory_of(tensor))  # PyTorch's threads do not come along
            os.write(says, b"y" if held == b"\1" * len(held) else b"n")
        finally:
            os._exit(0)
    del tensor
    after = ends.bring(2, SIZE // 2)
    ends.writer.forget()
    os.close(goes)
    assert os.read(seen, 1) == b"y"
    os.waitpid(child, 0)
    assert ends.put(3, SIZE // 2) is None
    del after  # of this no child knows
    assert ends.put(3, SIZE // 2) is not None
    for descriptor in (seen, says, waits):
        os.close(descriptor)


def reader_that_hears_of_forks_anew() -> type[LentReader]:
    """Return one that hears of a fork before all whom this process has told so far: the last comes first."""
    spec = importlib.util.spec_from_file_location("multiworld.channel.shared_memory.another", lent_module.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reader: type[LentReader] = module.LentReader
    return reader


def test_what_comes_while_a_process_forks_never_leaves_its_place() -> None:
    """As on another thread, after the fork was said to begin: the child has it, too."""
    came = list[Tensor]()
    arrivals = list[Callable[[], Tensor]]()
    os.register_at_fork(before=lambda: came.extend(bring() for bring in arrivals))
    reader = reader_that_hears_of_forks_anew()
    ends = Ends(reader)
    arrivals.append(lambda: ends.bring(1, SIZE // 2))
    child = fork()
    if child == 0:
        own = Ends(reader)
        place = own.put(1, 10)
        if place is None:
            os._exit(1)
        tensor = own.reader.tensor(place)
        del tensor  # of which this process alone knows
        os._exit(0 if own.reader._left[place.word] == place.number else 2)
    arrivals.clear()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    came.clear()
    after = ends.bring(2, SIZE // 2)
    assert ends.put(3, SIZE // 2) is None
    del after
    assert ends.put(3, SIZE // 2) is not None


def test_no_more_than_so_many_lie_there_at_once() -> None:
    own, descriptor = SharedRegion.create(BEGIN + 2 * NUM_PLACES * PAGE_BYTES)
    os.close(descriptor)
    writer = LentWriter(own, PAGE_BYTES, BEGIN, 2 * NUM_PLACES * PAGE_BYTES)
    tensor = torch.zeros(10, dtype=torch.uint8)
    small = [memory_of(tensor)]
    assert all(writer.put(small, 10) is not None for _ in range(NUM_PLACES))
    assert writer.put(small, 10) is None


def test_what_is_too_large_goes_another_way() -> None:
    size = 2 * MAX_KEPT_BYTES
    own, descriptor = SharedRegion.create(BEGIN + size)
    os.close(descriptor)
    writer = LentWriter(own, PAGE_BYTES, BEGIN, size)
    large = torch.zeros(MAX_KEPT_BYTES + 1, dtype=torch.uint8)
    assert writer.put([memory_of(large)], MAX_KEPT_BYTES + 1) is None
    assert writer.put([memory_of(large[:-1])], MAX_KEPT_BYTES) is not None


def test_a_payload_of_very_many_segments_goes_another_way() -> None:
    ends = Ends()
    tensor = torch.zeros(MAX_SEGMENTS + 1, dtype=torch.uint8)
    memory = memory_of(tensor)
    segments = [memory[index : index + 1] for index in range(len(memory))]
    assert ends.writer.put(segments, len(segments)) is None
    assert ends.writer.put(segments[1:], len(segments) - 1) is not None


def test_pages_in_which_something_lies_are_not_given_back() -> None:
    ends = Ends()
    first, second, third = (ends.bring(value, 3 * PAGE_BYTES + 1) for value in (1, 2, 3))
    at = second.data_ptr()
    del second
    ends.writer.forget()
    assert is_full_of(first, 1)
    assert is_full_of(third, 3)
    again = ends.bring(4, 4 * PAGE_BYTES)
    assert again.data_ptr() == at
    assert is_full_of(again, 4)


def test_only_what_somebody_has_takes_memory() -> None:
    ends = Ends()
    first, second = ends.bring(1, 8 * PAGE_BYTES), ends.bring(2, 8 * PAGE_BYTES)
    before = ends.used_bytes()
    del first
    assert ends.writer.forget()
    assert ends.used_bytes() == before - 8 * PAGE_BYTES
    assert is_full_of(second, 2)
    del second
    assert not ends.writer.forget()
    assert ends.used_bytes() == before - 16 * PAGE_BYTES


def test_after_the_end_each_gives_its_own_pages_back() -> None:
    """The writer may be dead."""
    ends = Ends()
    first, second = ends.bring(1, 8 * PAGE_BYTES), ends.bring(2, 8 * PAGE_BYTES)
    before = ends.used_bytes()
    ends.reader.close()
    del first
    assert ends.used_bytes() == before - 8 * PAGE_BYTES
    assert is_full_of(second, 2)


@pytest.mark.parametrize(
    "place",
    [
        Place(0, 0, 0, 1),
        Place(0, SIZE + 1, 0, 1),
        Place(SIZE - 10, 11, 0, 1),
        Place(0, MAX_KEPT_BYTES + 1, 0, 1),
        Place(0, 10, NUM_PLACES, 1),
        Place(0, 10, 0, 0),
        Place(1, 10, 0, 1),
    ],
)
def test_nonsense_about_a_place_is_refused(place: Place) -> None:
    with pytest.raises(ProtocolError, match="lent memory"):
        Ends().reader.tensor(place)


def test_a_place_that_is_given_away_twice_is_refused() -> None:
    ends = Ends()
    place = ends.put(1, 10)
    assert place is not None
    tensor = ends.reader.tensor(place)
    with pytest.raises(ProtocolError, match="has not left"):
        ends.reader.tensor(place._replace(number=2))
    del tensor
    with pytest.raises(ProtocolError, match="given away anew"):
        ends.reader.tensor(place)
    assert ends.reader.tensor(place._replace(number=2)) is not None


def test_many_lent_memories_are_smaller_and_the_words_have_room_in_the_page() -> None:
    assert lent_bytes(1) == lent_bytes(8) == 64 << 20
    assert lent_bytes(1000) % PAGE_BYTES == 0
    assert 1000 * lent_bytes(1000) <= 512 << 20
    assert LEFT_AT + 8 * NUM_PLACES <= PAGE_BYTES


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * PAGES * PAGE_BYTES // 4))))
def test_no_two_share_a_byte_and_what_left_makes_room(steps: list[tuple[bool, int]]) -> None:
    space = LentSpace(SIZE)
    numbers = set[int]()
    for takes, size in steps:
        if takes:
            fits = len(space.taken) < NUM_PLACES and any(end - begin >= size for begin, end in space.gaps())
            place = space.take(size)
            assert (place is not None) == fits
            if place is not None:
                assert place.number not in numbers
                numbers.add(place.number)
        elif space.taken:
            space.leave([space.taken[size % len(space.taken)]])
        ends = [place.end for place in space.taken]
        assert all(end <= place.offset for end, place in zip(ends, space.taken[1:], strict=False))
        assert all(place.offset % PAGE_BYTES == 0 and place.end <= SIZE for place in space.taken)
        assert len({place.word for place in space.taken}) == len(space.taken)
    space.leave(list(space.taken))
    assert space.gaps() == [(0, SIZE)]

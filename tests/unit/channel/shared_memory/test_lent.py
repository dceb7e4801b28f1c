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
from multiworld.channel.shared_memory import lent as shelf_module
from multiworld.channel.shared_memory.lent import (
    LEFT_AT,
    MAX_KEPT_BYTES,
    MAX_SEGMENTS,
    NUM_PLACES,
    PAGE_BYTES,
    Place,
    ShelfReader,
    ShelfSpace,
    ShelfWriter,
    shelf_bytes,
)
from multiworld.errors import ProtocolError
from multiworld.process.spawn.forking import fork
from multiworld.wire.memory.shared_region import SharedRegion

PAGES = 32
SIZE = PAGES * PAGE_BYTES
BEGIN = 2 * PAGE_BYTES


class Shelf:
    """Both ends, each with a mapping of its own."""

    def __init__(self, reader: type[ShelfReader] = ShelfReader) -> None:
        own, self._descriptor = SharedRegion.create(BEGIN + SIZE)
        other = SharedRegion(self._descriptor, BEGIN + SIZE)
        self.writer = ShelfWriter(own, PAGE_BYTES, BEGIN, SIZE)
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
    shelf = Shelf()
    first = shelf.bring(1, 20 * PAGE_BYTES)
    view = first[:10].view(2, 5)
    assert shelf.put(2, 20 * PAGE_BYTES) is None
    del first
    assert shelf.put(2, 20 * PAGE_BYTES) is None
    assert is_full_of(view, 1)
    del view
    assert is_full_of(shelf.bring(2, 20 * PAGE_BYTES), 2)


def test_whoever_has_it_may_change_it() -> None:
    shelf = Shelf()
    first, second = shelf.bring(1, 5000), shelf.bring(2, 5000)
    first.fill_(9)
    assert is_full_of(second, 2)
    assert is_full_of(first, 9)
    assert first.data_ptr() % PAGE_BYTES == 0


def test_a_payload_of_several_segments_lies_there_as_one() -> None:
    shelf = Shelf()
    parts = [torch.arange(100, dtype=torch.uint8), torch.full((28,), 7, dtype=torch.uint8)]
    place = shelf.writer.put([memory_of(part) for part in parts], 128)
    assert place is not None
    assert torch.equal(shelf.reader.tensor(place), torch.cat(parts))


def test_it_outlives_both_ends_of_the_shelf() -> None:
    shelf = Shelf()
    tensor = shelf.bring(3, 3 * PAGE_BYTES)
    del shelf
    gc.collect()
    assert is_full_of(tensor, 3)


def test_what_was_thrown_away_on_another_thread_has_left() -> None:
    shelf = Shelf()
    held = [shelf.bring(1, SIZE)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert shelf.put(2, SIZE) is not None


def test_what_a_forked_child_may_have_never_leaves_its_place() -> None:
    """Whoever throws it away first: the other one may still read it."""
    shelf = Shelf()
    tensor = shelf.bring(1, SIZE // 2)
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
    after = shelf.bring(2, SIZE // 2)
    shelf.writer.forget()
    os.close(goes)
    assert os.read(seen, 1) == b"y"
    os.waitpid(child, 0)
    assert shelf.put(3, SIZE // 2) is None
    del after  # of this no child knows
    assert shelf.put(3, SIZE // 2) is not None
    for descriptor in (seen, says, waits):
        os.close(descriptor)


def reader_that_hears_of_forks_anew() -> type[ShelfReader]:
    """Return one that hears of a fork before all whom this process has told so far: the last comes first."""
    spec = importlib.util.spec_from_file_location("multiworld.channel.shared_memory.another", shelf_module.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reader: type[ShelfReader] = module.ShelfReader
    return reader


def test_what_comes_while_a_process_forks_never_leaves_its_place() -> None:
    """As on another thread, after the fork was said to begin: the child has it, too."""
    came = list[Tensor]()
    arrivals = list[Callable[[], Tensor]]()
    os.register_at_fork(before=lambda: came.extend(bring() for bring in arrivals))
    reader = reader_that_hears_of_forks_anew()
    shelf = Shelf(reader)
    arrivals.append(lambda: shelf.bring(1, SIZE // 2))
    child = fork()
    if child == 0:
        own = Shelf(reader)
        place = own.put(1, 10)
        if place is None:
            os._exit(1)
        tensor = own.reader.tensor(place)
        del tensor  # of which this process alone knows
        os._exit(0 if own.reader._left[place.word] == place.number else 2)
    arrivals.clear()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    came.clear()
    after = shelf.bring(2, SIZE // 2)
    assert shelf.put(3, SIZE // 2) is None
    del after
    assert shelf.put(3, SIZE // 2) is not None


def test_no_more_than_so_many_lie_there_at_once() -> None:
    own, descriptor = SharedRegion.create(BEGIN + 2 * NUM_PLACES * PAGE_BYTES)
    os.close(descriptor)
    writer = ShelfWriter(own, PAGE_BYTES, BEGIN, 2 * NUM_PLACES * PAGE_BYTES)
    tensor = torch.zeros(10, dtype=torch.uint8)
    small = [memory_of(tensor)]
    assert all(writer.put(small, 10) is not None for _ in range(NUM_PLACES))
    assert writer.put(small, 10) is None


def test_what_is_too_large_goes_another_way() -> None:
    size = 2 * MAX_KEPT_BYTES
    own, descriptor = SharedRegion.create(BEGIN + size)
    os.close(descriptor)
    writer = ShelfWriter(own, PAGE_BYTES, BEGIN, size)
    large = torch.zeros(MAX_KEPT_BYTES + 1, dtype=torch.uint8)
    assert writer.put([memory_of(large)], MAX_KEPT_BYTES + 1) is None
    assert writer.put([memory_of(large[:-1])], MAX_KEPT_BYTES) is not None


def test_a_payload_of_very_many_segments_goes_another_way() -> None:
    shelf = Shelf()
    tensor = torch.zeros(MAX_SEGMENTS + 1, dtype=torch.uint8)
    memory = memory_of(tensor)
    segments = [memory[index : index + 1] for index in range(len(memory))]
    assert shelf.writer.put(segments, len(segments)) is None
    assert shelf.writer.put(segments[1:], len(segments) - 1) is not None


def test_pages_in_which_something_lies_are_not_given_back() -> None:
    shelf = Shelf()
    first, second, third = (shelf.bring(value, 3 * PAGE_BYTES + 1) for value in (1, 2, 3))
    at = second.data_ptr()
    del second
    shelf.writer.forget()
    assert is_full_of(first, 1)
    assert is_full_of(third, 3)
    again = shelf.bring(4, 4 * PAGE_BYTES)
    assert again.data_ptr() == at
    assert is_full_of(again, 4)


def test_only_what_somebody_has_takes_memory() -> None:
    shelf = Shelf()
    first, second = shelf.bring(1, 8 * PAGE_BYTES), shelf.bring(2, 8 * PAGE_BYTES)
    before = shelf.used_bytes()
    del first
    assert shelf.writer.forget()
    assert shelf.used_bytes() == before - 8 * PAGE_BYTES
    assert is_full_of(second, 2)
    del second
    assert not shelf.writer.forget()
    assert shelf.used_bytes() == before - 16 * PAGE_BYTES


def test_after_the_end_each_gives_its_own_pages_back() -> None:
    """The writer may be dead."""
    shelf = Shelf()
    first, second = shelf.bring(1, 8 * PAGE_BYTES), shelf.bring(2, 8 * PAGE_BYTES)
    before = shelf.used_bytes()
    shelf.reader.close()
    del first
    assert shelf.used_bytes() == before - 8 * PAGE_BYTES
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
    with pytest.raises(ProtocolError, match="shelf"):
        Shelf().reader.tensor(place)


def test_a_place_that_is_given_away_twice_is_refused() -> None:
    shelf = Shelf()
    place = shelf.put(1, 10)
    assert place is not None
    tensor = shelf.reader.tensor(place)
    with pytest.raises(ProtocolError, match="has not left"):
        shelf.reader.tensor(place._replace(number=2))
    del tensor
    with pytest.raises(ProtocolError, match="given away anew"):
        shelf.reader.tensor(place)
    assert shelf.reader.tensor(place._replace(number=2)) is not None


def test_many_shelves_are_smaller_and_the_words_have_room_in_the_page() -> None:
    assert shelf_bytes(1) == shelf_bytes(8) == 64 << 20
    assert shelf_bytes(1000) % PAGE_BYTES == 0
    assert 1000 * shelf_bytes(1000) <= 512 << 20
    assert LEFT_AT + 8 * NUM_PLACES <= PAGE_BYTES


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * PAGES * PAGE_BYTES // 4))))
def test_no_two_share_a_byte_and_what_left_makes_room(steps: list[tuple[bool, int]]) -> None:
    space = ShelfSpace(SIZE)
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

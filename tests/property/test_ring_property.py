"""Whatever is sent and read in whatever order: pieces never overlap, and there is room for the next one in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.channel.shared_memory.ring import ALIGNMENT, Piece, RingReads, RingSpace

SIZE = 64 * 256
MAX_PIECE = SIZE // 4
steps = st.lists(
    st.tuples(st.sampled_from(["take", "read now", "keep", "read kept", "report"]), st.integers(1, MAX_PIECE)),
    max_size=200,
)


class Both:
    """A sender and a receiver, with the pieces that are on their way between them."""

    def __init__(self) -> None:
        self.space, self.reads = RingSpace(SIZE), RingReads()
        self.coming: list[tuple[int, int]] = []
        self.kept: list[Piece] = []
        self.in_use: list[tuple[int, int]] = []  # in the order in which they were taken

    def take(self, size: int) -> bool:
        offset = self.space.take(size)
        if offset is None:
            return False
        assert offset % ALIGNMENT == 0
        assert offset + size <= SIZE
        assert all(offset + size <= start or offset >= end for start, end in self.in_use), "two pieces overlap"
        self.in_use.append((offset, offset + size))
        self.coming.append((offset, size))
        return True

    def read_now(self) -> None:
        if self.coming:
            self.reads.read(self.coming.pop(0)[1])

    def keep(self) -> None:
        if self.coming:
            self.kept.append(self.reads.keep(*self.coming.pop(0)))

    def read_kept(self, choice: int) -> None:
        if self.kept:
            self.reads.done(self.kept.pop(choice % len(self.kept)))

    def report(self) -> None:
        num_released = self.reads.take_released()
        assert self.space.release(num_released)
        del self.in_use[:num_released]


def play(both: Both, moves: list[tuple[str, int]]) -> None:
    for move, number in moves:
        if move == "take":
            both.take(number)
        elif move == "read now":
            both.read_now()
        elif move == "keep":
            both.keep()
        elif move == "read kept":
            both.read_kept(number)
        else:
            both.report()


@given(steps)
def test_pieces_in_use_never_overlap(moves: list[tuple[str, int]]) -> None:
    both = Both()
    play(both, moves)
    assert both.space.num_pieces == len(both.in_use)


@given(steps)
def test_all_is_free_once_all_was_read(moves: list[tuple[str, int]]) -> None:
    both = Both()
    play(both, moves)
    while both.coming:
        both.read_now()
    while both.kept:
        both.read_kept(0)
    both.report()
    assert both.space.num_pieces == 0
    assert both.reads.kept_bytes == 0
    assert both.take(MAX_PIECE)


def used(both: Both) -> int:
    """Return what pieces in use take of the ring, without what was skipped before them."""
    return sum(-(-(end - start) // ALIGNMENT) * ALIGNMENT for start, end in both.in_use)


@given(steps)
def test_the_receiver_knows_how_much_of_the_ring_it_keeps(moves: list[tuple[str, int]]) -> None:
    """However small the pieces are."""
    both = Both()
    play(both, [(move, number % 100 + 1) for move, number in moves])
    while both.coming:
        both.read_now()
    both.report()
    assert both.reads.kept_bytes == used(both)


@given(steps, st.integers(1, MAX_PIECE))
def test_there_is_room_while_the_receiver_keeps_at_most_half(moves: list[tuple[str, int]], size: int) -> None:
    both = Both()
    play(both, moves)
    while both.coming:
        both.read_now()
    while both.kept and used(both) > SIZE // 2:
        both.read_kept(0)
        both.report()
    both.report()
    assert both.take(size)


@given(st.integers(1, 300))
def test_no_more_is_released_than_was_taken(num_pieces: int) -> None:
    space = RingSpace(SIZE)
    taken = sum(space.take(64) is not None for _ in range(num_pieces))
    assert not space.release(taken + 1)
    assert space.release(taken)

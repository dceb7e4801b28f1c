"""The two ends of slots, in any order of steps: no end sleeps while there is something that it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.channel.shared_memory.slots import NUM_SLOTS, PythonSlots, SlotReader, SlotWriter
from tests.property.stepping import Actor, flags, play_in_turns
from tests.unit.channel.shared_memory.slot_ends import ENDS, MAX_PIECES, WINDOW_BYTES, Ends, Slots

NEAR_THE_END = 2**64 - 3
ends_of_slots = st.sampled_from(ENDS)
starts = st.sampled_from([0, NEAR_THE_END])

# ---- the ends, which act one at a time


class Model:
    """A writer that puts slots, and a reader that takes them and gives room back. Bells are on their way for a while.

    The reader counts what it has released without telling, and tells later.
    """

    def __init__(self, ends: Ends, start: int) -> None:
        self.slots = Slots(ends, start=start)
        self.num_put = self.num_taken = 0
        self.to_reader = self.to_writer = 0
        self.reader_rests = self.writer_rests = False
        self.untold = self.released = self.consumed = 0  # of which the writer has not heard
        self.rung: set[tuple[str, int]] = set()

    def put(self, count: int) -> None:
        for _ in range(count):
            assert self.slots.writer.has_room() == (self.num_put - self.num_taken < NUM_SLOTS)
            if self.slots.writer.has_room():
                is_told = self.slots.writer.reader_rests
                is_bell = self.slots.put(self.num_put)
                assert is_bell == is_told
                self.num_put += 1
                if is_bell:
                    self.to_reader += 1
                    self.rang("reader", self.slots.reader_rests.value)

    def take(self, count: int) -> None:
        for _ in range(count):
            taken = self.slots.take()
            assert taken == (self.num_taken if self.num_taken < self.num_put else None)
            self.num_taken += taken is not None

    def rest_reading(self, _: int) -> None:
        self.reader_rests = self.slots.reader.rest()
        assert self.reader_rests == (self.num_taken == self.num_put)
        if self.reader_rests:
            self.to_reader = 0  # it has looked after all that it was told of

    def wake(self, _: int) -> None:
        self.slots.reader.wake()
        self.reader_rests = False
        assert not self.slots.reader.rests
        assert not self.slots.writer.reader_rests

    def release(self, count: int) -> None:
        if self.untold + self.released + count <= MAX_PIECES:
            self.slots.reader.release(count)
            self.untold += count

    def tell_released(self, _: int) -> None:
        self.released += self.untold
        self.untold = 0
        self.ring_writer("released", self.slots.reader.has_released())

    def consume(self, count: int) -> None:
        if self.consumed + count <= WINDOW_BYTES:
            self.consumed += count
            self.ring_writer("consumed", self.slots.reader.consume(count))

    def ring_writer(self, what: str, is_bell: bool) -> None:
        if is_bell:
            self.to_writer += 1
            self.rang(what, self.slots.writer_rests.value)

    def collect(self, _: int) -> None:
        """The writer may do so at any time, also while it rests."""
        assert self.slots.writer.take_released() == self.released + self.untold
        assert self.slots.writer.take_consumed() == self.consumed
        self.released = self.untold = self.consumed = 0

    def rest_writing(self, _: int) -> None:
        self.writer_rests = self.slots.writer.rest()
        assert self.writer_rests == (self.released + self.untold + self.consumed == 0)
        if self.writer_rests:
            self.to_writer = 0

    def rang(self, what: str, rest: int) -> None:
        assert rest % 2 == 1, "who was rung does not rest"
        assert (what, rest) not in self.rung, "it was rung twice"
        self.rung.add((what, rest))

    def check(self) -> None:
        assert len(self.slots.reader) == self.num_put - self.num_taken
        assert self.slots.reader.has_some == (self.num_put > self.num_taken)
        if self.reader_rests and not self.to_reader:
            assert self.num_put == self.num_taken, "there is a slot, and the reader sleeps"
        if self.writer_rests and not self.to_writer:
            assert self.released == self.consumed == 0, "there is room, and the writer sleeps"
        self.slots.check_guards()


Step: TypeAlias = Callable[[Model, int], None]
STEPS: dict[str, Step] = {
    "put": Model.put,
    "take": Model.take,
    "rest reading": Model.rest_reading,
    "wake": Model.wake,
    "release": Model.release,
    "tell": Model.tell_released,
    "consume": Model.consume,
    "collect": Model.collect,
    "rest writing": Model.rest_writing,
}
steps_of_model = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(1, NUM_SLOTS + 2)), max_size=80)


@given(ends_of_slots, starts, steps_of_model)
@settings(max_examples=300)
def test_nobody_sleeps_who_was_not_told(ends: Ends, start: int, steps: list[tuple[str, int]]) -> None:
    model = Model(ends, start)
    for name, count in steps:
        STEPS[name](model, count)
        model.check()


# ---- ends that act at the same time: one look at a word, or one change of it, after the other


RING_PIECES, TINY_WINDOW = 3, 5


def ends_of(end: SlotWriter | SlotReader) -> list[PythonSlots]:
    parts = (
        (end._end, end._room, end._window) if isinstance(end, SlotWriter) else (end._end, end._released, end._consumed)
    )
    assert all(isinstance(part, PythonSlots) for part in parts)
    return list(parts)  # type: ignore[arg-type]


def play(total: int, choices: int, schedule: int) -> None:
    """Move so many messages through a tiny ring and window.

    ``choices``: what the reader tells early, and when it looks, in bits.
    """
    slots = Slots((PythonSlots, PythonSlots), start=2**64 - 2)
    writer, reader = Actor(*ends_of(slots.writer)), Actor(*ends_of(slots.reader))
    came = list[int]()
    early, looks = flags(choices), flags(choices >> 20)

    def write() -> None:
        used = unconsumed = 0
        for seq in range(total):
            while used == RING_PIECES or unconsumed == TINY_WINDOW:
                released, consumed = slots.writer.take_released(), slots.writer.take_consumed()
                used, unconsumed = used - released, unconsumed - consumed
                if not (released or consumed) and slots.writer.rest():
                    writer.sleep()
            assert slots.writer.has_room()
            used, unconsumed = used + 1, unconsumed + 1
            if slots.put(seq):
                reader.bells += 1

    def read() -> None:
        unconsumed, untold = 0, False
        while len(came) < total:
            if next(looks):
                slots.reader.wake()
            seq = slots.take()
            if seq is not None:
                came.append(seq)
                slots.reader.release(1)
                unconsumed, untold = unconsumed + 1, True
            if untold and (seq is None or next(early)):
                untold = False
                writer.bells += slots.reader.has_released()
            if unconsumed and (seq is None or next(early)):
                writer.bells += slots.reader.consume(unconsumed)
                unconsumed = 0
            if seq is None and slots.reader.rest():
                reader.sleep()

    play_in_turns(writer, write, reader, read, schedule)
    assert came == list(range(total))
    slots.check_guards()


@given(st.integers(1, 12), st.integers(0, 2**40), st.integers(0, 2**160))
@settings(max_examples=300)
def test_ends_that_act_at_once_never_both_sleep(total: int, choices: int, schedule: int) -> None:
    play(total, choices, schedule)

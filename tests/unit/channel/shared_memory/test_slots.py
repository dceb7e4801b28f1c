"""The two ends of slots, of the native core and of Python: what is put comes out, and who waits is told once."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from multiworld.channel.shared_memory.slots import (
    HOLDING_BYTES,
    MAX_META_BYTES,
    NUM_SLOTS,
    SLOT_BYTES,
    Slot,
    SlotWriter,
)
from multiworld.errors import ProtocolError
from multiworld.testing import scaled
from tests.unit.channel.shared_memory.pipes import Memory, noise
from tests.unit.channel.shared_memory.slot_ends import ENDS, MAX_PIECES, WINDOW_BYTES, Ends, Slots

NEAR_THE_END = 2**64 - NUM_SLOTS // 2
META_LENGTH_AT = 40
OF_ENDS = pytest.mark.parametrize("ends", ENDS, ids=lambda ends: f"{ends[0].__name__}-{ends[1].__name__}")
MOST = 2**64 - 1


@pytest.fixture(params=[0, NEAR_THE_END], ids=["from-0", "past-2**64"])
def slots(request: pytest.FixtureRequest, ends: Ends) -> Iterator[Slots]:
    """Slots whose counts may wrap around; ``ends`` says of which kinds."""
    slots = Slots(ends, start=request.param)
    yield slots
    slots.check_guards()


# ---- what goes through


@OF_ENDS
def test_messages_come_out_as_they_went_in(slots: Slots) -> None:
    """With their payloads, which lie anywhere in the ring, and in the order in which they were put."""
    sizes = (1, 63, 64, 4095, 4097, HOLDING_BYTES, HOLDING_BYTES + 1)
    for round_ in range(5):
        sent = list[tuple[Slot, bytes]]()
        ring = Memory(bytes(2 * sum(sizes)))
        offset = round_
        for number, size in enumerate(sizes):
            payload, meta = noise(size, seed=size + round_), noise(number * MAX_META_BYTES // (len(sizes) - 1))
            slot = Slot(100 * round_ + number, number - 3, offset, size, 1000 * round_ + number, meta)
            source = Memory(payload, skew=number)
            assert slots.writer.has_room()
            slots.writer.put(slot, ring.address + offset, source.address)
            sent.append((slot, payload))
            offset += size + 3
        for number, (slot, payload) in enumerate(sent):
            assert len(slots.reader) == len(sent) - number
            assert slots.reader.first() == slot
            target = Memory(bytes(slot.size_bytes), skew=number)
            slots.reader.take(target.address, ring.address + slot.offset)
            assert target.content == payload
            target.check_guards()
        ring.check_guards()
    assert slots.reader.first() is None


@OF_ENDS
def test_slots_are_used_again_and_again(slots: Slots) -> None:
    put = taken = 0
    for batch in (1, 7, NUM_SLOTS, NUM_SLOTS - 1, 3) * 4:
        for _ in range(batch):
            assert slots.writer.has_room()
            slots.put(put, meta=b"%d" % put)
            put += 1
        while slots.reader.has_some:
            assert slots.reader.first() == Slot(taken, 0, 0, 1, taken, b"%d" % taken)
            assert slots.take() == taken
            taken += 1
        assert taken == put
    assert put > 4 * NUM_SLOTS


@OF_ENDS
def test_a_payload_that_is_in_its_place_stays_there_and_one_that_nobody_wants_goes_nowhere(slots: Slots) -> None:
    ring = Memory(noise(100))
    slots.writer.put((1, 0, 0, 100, 0, b""), ring.address)
    slots.writer.put((2, 0, 0, 1 << 40, 1, b""))  # which is far more than there is
    assert [slots.take(), slots.take()] == [1, 2]
    assert ring.content == noise(100)


@OF_ENDS
def test_there_is_no_room_until_a_slot_is_taken(slots: Slots) -> None:
    for seq in range(NUM_SLOTS):
        assert slots.writer.has_room()
        slots.put(seq)
    assert not slots.writer.has_room()
    slots.reader.first()
    assert not slots.writer.has_room(), "it was looked at only"
    slots.take()
    assert slots.writer.has_room()
    slots.put(NUM_SLOTS)
    assert not slots.writer.has_room()
    assert [slots.take() for _ in range(NUM_SLOTS + 1)] == [*range(1, NUM_SLOTS + 1), None]


@OF_ENDS
def test_the_first_slot_stays_the_same_until_it_is_taken(slots: Slots) -> None:
    assert not slots.reader.has_some
    assert slots.reader.first() is None
    slots.put(1)
    assert slots.reader.has_some
    first = slots.reader.first()
    slots.slot(0)[:] = bytes(SLOT_BYTES)  # by a peer that changes its mind
    slots.put(2)
    assert slots.reader.first() is first
    assert [slots.take(), slots.take()] == [1, 2]
    assert not slots.reader.has_some


# ---- who waits for slots


@OF_ENDS
def test_a_reader_that_rests_is_told_once_each_time(slots: Slots) -> None:
    assert not slots.put(0), "nobody waits"
    assert slots.take() == 0
    for seq in range(1, 3 * NUM_SLOTS, 3):
        assert slots.reader.rest()
        assert [slots.put(seq), slots.put(seq + 1)] == [True, False]
        assert [slots.take(), slots.take()] == [seq, seq + 1]
        assert not slots.put(seq + 2), "it was told, and does not rest anew"
        assert slots.take() == seq + 2


@OF_ENDS
def test_a_reader_may_rest_again_without_having_been_told(slots: Slots) -> None:
    assert slots.reader.rest()
    assert slots.reader.rest()
    assert [slots.put(1), slots.put(2)] == [True, False]


@OF_ENDS
def test_a_reader_does_not_rest_while_there_is_something(slots: Slots) -> None:
    slots.put(1)
    slots.put(2)
    assert not slots.reader.rest()
    assert slots.take() == 1
    assert not slots.reader.rest(), "the other one was seen with the first"
    assert not slots.put(3), "nobody waits"
    assert [slots.take(), slots.take()] == [2, 3]
    assert slots.reader.rest()


@OF_ENDS
def test_a_writer_knows_whether_the_next_slot_is_told(slots: Slots) -> None:
    assert not slots.reader.rests
    assert not slots.writer.reader_rests
    for seq in range(0, 9, 3):
        assert slots.reader.rest()
        assert slots.reader.rests
        assert slots.writer.reader_rests
        assert slots.put(seq)
        assert slots.reader.rests, "it does not know"
        assert not slots.writer.reader_rests, "it was told"
        assert not slots.put(seq + 1)
        assert slots.reader.rest() is False
        assert [slots.take(), slots.take()] == [seq, seq + 1]
        assert slots.reader.rest()
        slots.reader.wake()
        assert not slots.reader.rests
        assert not slots.writer.reader_rests
        assert not slots.put(seq + 2), "it looks"
        assert slots.take() == seq + 2


# ---- who looks


class Looking:
    """A thread that looks, and a socket in which nothing is."""

    def __init__(self, slots: Slots, spin_s: float) -> None:
        self.slots, self.spin_s = slots, spin_s
        self.ours, self.theirs = socket.socketpair()
        self.seen = slots.reader.interruptions
        self.result: bool | None = None
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Looking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(scaled(20))
        assert not self._thread.is_alive()
        self.ours.close()
        self.theirs.close()

    def _look(self) -> None:
        began = time.monotonic()
        self.result = self.slots.reader.look(self.ours.fileno(), self.spin_s, self.seen)
        self.took_s = time.monotonic() - began


LONG_S = 1000.0
SOON_S = 0.02


@OF_ENDS
def test_who_looks_sees_what_is_there_and_what_comes(slots: Slots) -> None:
    slots.put(1)
    with Looking(slots, LONG_S) as looking:
        pass
    assert looking.result is True
    assert slots.take() == 1
    for seq in range(5):
        with Looking(slots, LONG_S) as looking:
            time.sleep(SOON_S)
            assert looking.result is None
            slots.put(seq)
        assert looking.result is True
        assert slots.take() == seq


@OF_ENDS
def test_a_look_ends_after_its_time(slots: Slots) -> None:
    with Looking(slots, SOON_S) as looking:
        pass
    assert looking.result is False
    assert looking.took_s >= SOON_S


@OF_ENDS
def test_a_look_ends_when_there_is_something_in_the_socket(slots: Slots) -> None:
    with Looking(slots, LONG_S) as looking:
        time.sleep(SOON_S)
        assert looking.result is None
        looking.theirs.send(b"x")
    assert looking.result is False


@OF_ENDS
def test_a_look_ends_when_the_peer_is_gone(slots: Slots) -> None:
    with Looking(slots, LONG_S) as looking:
        time.sleep(SOON_S)
        looking.theirs.shutdown(socket.SHUT_RDWR)
    assert looking.result is False


@OF_ENDS
def test_a_look_can_be_interrupted(slots: Slots) -> None:
    for _ in range(2):
        with Looking(slots, LONG_S) as looking:
            time.sleep(SOON_S)
            assert looking.result is None
            slots.reader.interrupt()
        assert looking.result is False
    looking = Looking(slots, LONG_S)
    slots.reader.interrupt()  # between what it has seen and its look
    with looking:
        pass
    assert looking.result is False


@OF_ENDS
def test_a_writer_that_counts_backwards_is_not_seen_before_the_look_is_over(slots: Slots) -> None:
    """Or at once, as nonsense: in no case for longer."""
    slots.written.value = slots.written.value - 5 & MOST
    with Looking(slots, SOON_S):
        pass
    with pytest.raises(ProtocolError, match="more than there can be"):
        slots.reader.first()


# ---- who waits for room


@OF_ENDS
def test_what_is_released_and_consumed_is_counted_once(slots: Slots) -> None:
    assert (slots.writer.take_released(), slots.writer.take_consumed()) == (0, 0)
    for _ in range(300):
        slots.reader.release(2)
        slots.reader.release(5)
        assert not slots.reader.consume(1000)
        assert slots.writer.take_released() == 7
        assert slots.writer.take_consumed() == 1000
        assert (slots.writer.take_released(), slots.writer.take_consumed()) == (0, 0)
    slots.reader.release(MAX_PIECES)
    assert not slots.reader.consume(WINDOW_BYTES)
    assert (slots.writer.take_released(), slots.writer.take_consumed()) == (MAX_PIECES, WINDOW_BYTES)


@OF_ENDS
def test_a_writer_that_rests_is_told_of_what_is_released(slots: Slots) -> None:
    assert not slots.reader.has_released(), "nobody waits"
    for _ in range(3):
        assert slots.writer.rest()
        slots.reader.release(1)
        slots.reader.release(2)
        assert [slots.reader.has_released(), slots.reader.has_released()] == [True, False]
        assert slots.writer.take_released() == 3
        slots.reader.release(1)
        assert not slots.reader.has_released(), "it was told, and does not rest anew"
        assert slots.writer.take_released() == 1


@OF_ENDS
def test_a_writer_that_rests_is_told_of_what_is_consumed(slots: Slots) -> None:
    for _ in range(3):
        assert slots.writer.rest()
        assert [slots.reader.consume(10), slots.reader.consume(20)] == [True, False]
        assert slots.writer.take_consumed() == 30


@OF_ENDS
def test_a_writer_does_not_rest_while_there_is_something(slots: Slots) -> None:
    for _ in range(3):
        slots.reader.release(1)
        assert not slots.writer.rest()
        assert not slots.reader.has_released(), "nobody waits"
        assert slots.writer.take_released() == 1
        slots.reader.consume(1)
        assert not slots.writer.rest()
        assert not slots.reader.consume(1), "nobody waits"
        assert slots.writer.take_consumed() == 2
        assert slots.writer.rest()


# ---- nonsense


@OF_ENDS
@pytest.mark.parametrize("by", [-1, NUM_SLOTS + 1, 2**63])
def test_a_writer_that_counts_nonsense_is_an_error(slots: Slots, by: int) -> None:
    slots.written.value += by
    assert slots.reader.has_some, "a receive should look"
    assert 0 <= len(slots.reader) <= NUM_SLOTS
    assert not slots.reader.rest()
    for _ in range(2):
        with pytest.raises(ProtocolError, match="counts more"):
            slots.reader.first()


@OF_ENDS
@pytest.mark.parametrize("by", [-NUM_SLOTS - 1, 1, 2**63])
def test_a_reader_that_counts_nonsense_is_an_error(slots: Slots, by: int) -> None:
    slots.taken.value += by
    for _ in range(2):
        with pytest.raises(ProtocolError, match="counts more"):
            slots.writer.has_room()


FREED = [
    *(("released", SlotWriter.take_released, by) for by in (-1, MAX_PIECES + 1, 2**63)),
    *(("consumed", SlotWriter.take_consumed, by) for by in (-1, WINDOW_BYTES + 1, 2**63)),
]


@OF_ENDS
@pytest.mark.parametrize(("count", "take", "by"), FREED, ids=lambda value: "" if callable(value) else str(value))
def test_a_reader_that_frees_more_than_there_can_be_is_an_error(
    slots: Slots, count: str, take: Callable[[SlotWriter], int], by: int
) -> None:
    getattr(slots, count).value += by
    assert not slots.writer.rest()
    for _ in range(2):
        with pytest.raises(ProtocolError, match="counts more"):
            take(slots.writer)


@OF_ENDS
def test_a_description_that_does_not_fit_is_an_error(slots: Slots) -> None:
    slots.put(1, meta=bytes(MAX_META_BYTES))
    slots.put(2)
    for length in (MAX_META_BYTES + 1, 2**32 - 1):
        struct.pack_into("<I", slots.slot(1), META_LENGTH_AT, length)
        assert slots.reader.first() is not None, "this one makes sense"
    assert slots.take() == 1
    for _ in range(2):
        with pytest.raises(ProtocolError, match="bytes of meta"):
            slots.reader.first()


@OF_ENDS
def test_words_that_the_other_end_overwrites_do_no_harm(slots: Slots) -> None:
    """Each end knows its own counts, and whoever says of the other that it rests tells itself."""
    slots.put(1)
    slots.written.value = slots.reader_rests.value = MOST
    slots.put(2)
    assert [slots.take(), slots.take()] == [1, 2]
    slots.taken.value = slots.writer_rests.value = MOST
    slots.reader.release(1)
    slots.put(3)
    assert slots.take() == 3
    assert slots.writer.take_released() == 1

"""Two streams of one process whose messages of moderate size are told by slots: order, room, and nonsense in them."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from multiworld.channel.payload.tensors import describe, memory_of
from multiworld.channel.shared_memory.host_memory import RING_BYTES
from multiworld.channel.shared_memory.pipe import reader_words, writer_words
from multiworld.channel.shared_memory.slots import CONSUMED_AT, MAX_META_BYTES, NUM_SLOTS, RELEASED_AT, WORDS_AT, Slot
from multiworld.channel.stream import sending as stream_sending
from multiworld.channel.stream import shared_sending, shared_stream
from multiworld.channel.stream.message import USER, key_of
from multiworld.channel.stream.outbox import WINDOW_BYTES as EAGER_WINDOW_BYTES
from multiworld.channel.stream.shared_sending import INLINE_BYTES, MAX_PIECES, SHARED_EAGER_BYTES
from multiworld.channel.stream.shared_stream import SharedStream
from multiworld.testing import scaled, wait_until
from multiworld.wire.connection.frames import Kind, pack_header
from multiworld.wire.memory.shared_region import SharedRegion
from multiworld.wire.progress.operation import Operation, StepsCancelled
from multiworld.wire.progress.spinning import MIN_STREAK
from multiworld.wire.progress.waiting import wait_blocking, while_blocked
from tests.unit.channel.stream.shared_pair import Pair

MODERATE = 40_000
MOST = EAGER_WINDOW_BYTES // SHARED_EAGER_BYTES  # of the largest that the window allows at once
SIZES = (1, INLINE_BYTES, INLINE_BYTES + 1, MODERATE, 200_001, SHARED_EAGER_BYTES, SHARED_EAGER_BYTES + 1, 1_500_000)


@pytest.fixture
def pair(no_leaks: None) -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture
def lent(pair: Pair) -> Pair:
    """One whose slots are used from the first message on."""
    pair.lend()
    wait_blocking(pair.send(numbered(0)))
    assert received(pair) == 0
    assert pair.here._slot_writes is not None
    return pair


def numbered(number: int, size: int = MODERATE) -> Tensor:
    return torch.full((size,), number % 251, dtype=torch.uint8)


def received(pair: Pair, tag: int = 0, size: int = MODERATE) -> int:
    """Receive a message, and return which one it was, modulo 251."""
    tensor = torch.full((size,), 255, dtype=torch.uint8)
    wait_blocking(pair.recv(tensor, tag))
    return number_of(tensor)


def number_of(tensor: Tensor) -> int:
    assert tensor.min() == tensor.max(), "half of a message"
    return int(tensor[0])


def in_slots(pair: Pair) -> int:
    """How many messages lie in slots that ``there`` has not taken."""
    slots = pair.there._slot_reads
    assert slots is not None
    return len(slots)


def finished(threads: list[threading.Thread], errors: list[BaseException]) -> None:
    for thread in threads:
        thread.join(scaled(40))
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    assert errors == []


def started(work: Callable[[], None], errors: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# ---- what comes, and in which order


def test_a_receive_takes_the_first_slot_straight_into_its_tensor(lent: Pair) -> None:
    before = lent.there.messages_received, lent.there.bytes_received
    for number in range(3):
        wait_blocking(lent.send(numbered(number)))
    assert in_slots(lent) == 3
    tensor = torch.zeros(MODERATE, dtype=torch.uint8)
    for number in range(3):
        receiving = lent.recv(tensor)
        assert receiving.done, "it was there"
        assert number_of(tensor) == number
        assert in_slots(lent) == 2 - number
    assert (lent.there.messages_received, lent.there.bytes_received) == (before[0] + 3, before[1] + 3 * MODERATE)


def test_a_receive_that_waits_is_told_of_the_first_slot(lent: Pair) -> None:
    for number in range(5):
        tensor = torch.zeros(MODERATE, dtype=torch.uint8)
        receiving = lent.recv(tensor)
        assert not receiving.done
        wait_blocking(lent.send(numbered(number)))
        wait_blocking(receiving)
        assert number_of(tensor) == number


class Traffic:
    """Messages of all sizes on several tags from one stream to the other, which receives them in another order."""

    COUNT = 150
    AHEAD = 20  # of the first message that has not come, at most

    def __init__(self, sender: SharedStream, receiver: SharedStream, seed: int, *, looks: bool = False) -> None:
        """``looks``: the receiver looks for some messages before it waits for them."""
        self.sender, self.receiver, self.looks = sender, receiver, looks
        self.random = random.Random(seed)
        self.messages = [(self.random.randrange(3), self.random.choice(SIZES)) for _ in range(self.COUNT)]
        self.may_send = threading.Semaphore(2 * self.AHEAD)

    def send(self) -> None:
        sends = list[Operation[None]]()
        for number, (tag, size) in enumerate(self.messages):
            assert self.may_send.acquire(timeout=scaled(30)), "what was sent does not come"
            tensor = numbered(number, size)
            sends.append(self.sender.send(USER, tag, describe(tensor), [memory_of(tensor)], [tensor]))
        for send in sends:
            wait_blocking(send)

    def receive(self) -> None:
        """Some receives are given up, and issued again."""
        tags = [deque(number for number, (its, _) in enumerate(self.messages) if its == tag) for tag in range(3)]
        waiting = deque[tuple[int, Tensor, Operation[Any]]]()
        while waiting or any(tags):
            first = min([number for number, _, _ in waiting] + [tag[0] for tag in tags if tag])
            open_tags = [tag for tag in tags if tag and tag[0] < first + self.AHEAD]
            if open_tags and len(waiting) < 6:
                number = self.random.choice(open_tags).popleft()
                tensor, receiving = self.post(number)
                if self.random.random() < 0.2:
                    receiving.cancel_or_undo(StepsCancelled())
                    tensor.fill_(253)
                    tensor, receiving = self.post(number)
                waiting.append((number, tensor, receiving))
            else:
                number, tensor, receiving = waiting.popleft()
                wait_blocking(receiving)
                assert number_of(tensor) == number
                self.may_send.release()

    def post(self, number: int) -> tuple[Tensor, Operation[Any]]:
        tag, size = self.messages[number]
        tensor = torch.full((size,), 255, dtype=torch.uint8)
        receive = partial(self.receiver.recv, USER, tag, describe(tensor), tensor)
        if not self.looks or self.random.random() < 0.3:
            return tensor, receive()
        expect_soon(self.receiver)
        return tensor, while_blocked(receive)


@pytest.mark.parametrize("looks", [False, True], ids=["", "looking"])
@pytest.mark.parametrize("seed", range(6))
def test_messages_of_all_sizes_come_in_order_on_each_tag_in_both_directions(pair: Pair, seed: int, looks: bool) -> None:
    """Through the socket, slots, frames and the pipe: memory is lent when they are on their way already."""
    errors = list[BaseException]()
    traffics = [
        Traffic(pair.here, pair.there, seed, looks=looks),
        Traffic(pair.there, pair.here, 100 + seed, looks=looks),
    ]
    finished([started(work, errors) for it in traffics for work in (it.send, it.receive)], errors)
    for stream in pair.streams:
        assert stream._slot_writes is not None
        assert stream.queue_depths() == (0, 0, 0)


def test_both_may_send_more_than_the_ring_and_all_slots_hold_before_they_receive(lent: Pair) -> None:
    count = 6_000_000 // MODERATE
    assert count > NUM_SLOTS
    assert count * MODERATE > RING_BYTES
    sends = list[Operation[None]]()
    for number in range(count):
        tensor = numbered(number)
        for stream in lent.streams:
            sends.append(stream.send(USER, 0, describe(tensor), [memory_of(tensor)], [tensor]))
    for send in sends:
        wait_blocking(send)
    for stream in lent.streams:
        for number in range(count):
            tensor = torch.zeros(MODERATE, dtype=torch.uint8)
            wait_blocking(stream.recv(USER, 0, describe(tensor), tensor))
            assert number_of(tensor) == number % 251


def test_a_receive_of_another_tag_passes_what_nobody_receives(lent: Pair) -> None:
    sends = [lent.send(numbered(number)) for number in range(NUM_SLOTS + 20)]
    sends.append(lent.send(numbered(77), tag=1))
    assert received(lent, tag=1) == 77
    for send in sends:
        wait_blocking(send)
    assert [received(lent) for _ in range(NUM_SLOTS + 20)] == list(range(NUM_SLOTS + 20))


def test_small_messages_and_slots_of_one_tag_stay_in_order(lent: Pair) -> None:
    """Also when the receiver has not looked at the socket, or not at the slots, for a while."""
    sizes = [MODERATE, 5, 5, MODERATE, MODERATE, 5, MODERATE]
    for _ in range(3):
        resume = lent.stop_reading()
        sends = [lent.send(numbered(number, size)) for number, size in enumerate(sizes)]
        resume()
        assert [received(lent, size=size) for size in sizes] == list(range(len(sizes)))
        for send in sends:
            wait_blocking(send)


def test_what_was_received_by_a_task_that_was_cancelled_comes_first_again(lent: Pair) -> None:
    sends = [lent.send(numbered(number)) for number in range(3)]
    tensor = torch.zeros(MODERATE, dtype=torch.uint8)
    receiving = lent.recv(tensor)
    assert receiving.done
    receiving.cancel_or_undo(StepsCancelled())
    tensor.fill_(255)
    assert [received(lent) for _ in range(3)] == [0, 1, 2]
    for send in sends:
        wait_blocking(send)


def test_a_send_that_was_withdrawn_lets_no_later_message_pass_what_is_before_it(lent: Pair) -> None:
    """Its receive is told by a frame that it has no message, and takes the next one, which lies in a slot, after it."""
    large = numbered(1, SHARED_EAGER_BYTES + 1)
    withdrawn = lent.send(large)  # announced only: no receive waits
    assert not withdrawn.done
    assert withdrawn.cancel(StepsCancelled())
    sends = [lent.send(numbered(number)) for number in (2, 3)]
    for number in (2, 3):
        came = wait_blocking(lent.there.recv(USER, 0, None, None))
        assert isinstance(came, Tensor)
        assert number_of(came) == number
    for send in sends:
        wait_blocking(send)


# ---- who looks

SMALL = 4
LONG_S = 1000.0


def expect_soon(stream: SharedStream) -> None:
    """Let it believe that what it waits for comes at once."""
    for _ in range(MIN_STREAK):
        stream.connection.quick_waits.waited(0.0)


def look_for(pair: Pair, tensor: Tensor, errors: list[BaseException], tag: int = 0) -> threading.Thread:
    """Receive on a thread that waits for nothing else, and looks."""
    expect_soon(pair.there)

    def receive() -> None:
        wait_blocking(while_blocked(lambda: pair.recv(tensor, tag)))

    return started(receive, errors)


def looks(pair: Pair) -> bool:
    """Whether ``there``, which rested, looks now."""
    slots = pair.there._slot_reads
    return slots is not None and not slots.rests


def let_rest(pair: Pair) -> None:
    slots = pair.there._slot_reads
    assert slots is not None
    pair.there.connection.run_and_wait(lambda: assert_true(slots.rest()))


def let_look(pair: Pair) -> None:
    slots = pair.there._slot_reads
    assert slots is not None
    pair.there.connection.run_and_wait(slots.wake)


def interrupt(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def refuse(*_: object) -> NoReturn:
    raise OSError("no memory")


def assert_true(fact: bool) -> None:
    assert fact


def num_slots_used(stream: SharedStream) -> int:
    """How many messages it has put into slots, modulo NUM_SLOTS."""
    assert stream._slot_writes is not None
    return stream._slot_writes._next


def test_a_small_message_goes_into_a_slot_unless_its_reader_rests(lent: Pair) -> None:
    let_rest(lent)
    used = num_slots_used(lent.here)
    wait_blocking(lent.send(numbered(1, SMALL)))
    assert num_slots_used(lent.here) == used, "a frame has to wake the reader, and may bring the message"
    assert received(lent, size=SMALL) == 1
    let_look(lent)
    for number in range(2, 5):
        wait_blocking(lent.send(numbered(number, SMALL)))
    assert (num_slots_used(lent.here), in_slots(lent)) == (used + 3, 3)
    tensor = torch.zeros(SMALL, dtype=torch.uint8)
    for number in range(2, 5):
        assert lent.recv(tensor).done
        assert number_of(tensor) == number


def test_a_small_message_that_finds_no_slot_goes_by_a_frame(lent: Pair) -> None:
    let_look(lent)
    count = 2 * NUM_SLOTS
    resume = lent.stop_reading()
    for number in range(count):
        wait_blocking(lent.send(numbered(number, SMALL)))
    assert in_slots(lent) == NUM_SLOTS
    resume()
    assert [received(lent, size=SMALL) for _ in range(count)] == [number % 251 for number in range(count)]


def test_a_thread_that_waits_looks_for_a_message_that_comes_soon(lent: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_stream, "LOOK_S", LONG_S)
    errors = list[BaseException]()
    for number in range(5):
        let_rest(lent)
        used = num_slots_used(lent.here)
        tensor = torch.zeros(SMALL, dtype=torch.uint8)
        thread = look_for(lent, tensor, errors)
        assert wait_until(lambda: looks(lent), timeout_s=5)
        assert lent.there.queue_depths() == (0, 0, 0), "it has not asked for anything yet"
        wait_blocking(lent.send(numbered(number, SMALL)))
        finished([thread], errors)
        assert number_of(tensor) == number
        assert num_slots_used(lent.here) == (used + 1) % NUM_SLOTS


def test_who_has_looked_in_vain_waits_as_ever(lent: Pair) -> None:
    errors = list[BaseException]()
    for number in range(5):
        tensor = torch.zeros(SMALL, dtype=torch.uint8)
        thread = look_for(lent, tensor, errors)
        assert wait_until(lambda: lent.there.queue_depths() == (1, 0, 0), timeout_s=5)
        wait_blocking(lent.send(numbered(number, SMALL)))
        finished([thread], errors)
        assert number_of(tensor) == number


def test_a_reader_rests_no_longer_than_something_waits(lent: Pair) -> None:
    """So that what comes next is in a slot, whatever its reader waited for before."""
    for size in (SMALL, MODERATE, SHARED_EAGER_BYTES + 1):
        tensors = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        receiving = [lent.recv(tensor, tag) for tag, tensor in enumerate(tensors)]
        for tag in range(2):
            assert not looks(lent)
            wait_blocking(lent.send(numbered(tag, size), tag))
            wait_blocking(receiving[tag])
        assert looks(lent)
        assert [number_of(tensor) for tensor in tensors] == [0, 1]


def by_frame(number: int) -> Tensor:
    """Return a small message with a description that no slot takes."""
    return numbered(number, SMALL).reshape((1,) * 40 + (SMALL,))


def test_a_look_ends_when_the_message_comes_elsewhere(lent: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_stream, "LOOK_S", LONG_S)
    errors = list[BaseException]()
    for number in range(20):
        let_rest(lent)
        tensor = torch.zeros_like(by_frame(0))
        thread = look_for(lent, tensor, errors)
        assert wait_until(lambda: looks(lent), timeout_s=5)
        wait_blocking(lent.send(by_frame(number)))
        finished([thread], errors)
        assert number_of(tensor.flatten()) == number


def test_a_look_ends_with_the_world(lent: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_stream, "LOOK_S", LONG_S)
    let_rest(lent)
    errors = list[BaseException]()
    thread = look_for(lent, torch.zeros(SMALL), errors)
    assert wait_until(lambda: looks(lent), timeout_s=5)
    error = RuntimeError("the world is broken")
    lent.there.abort(error)
    thread.join(scaled(10))
    assert errors == [error]


def test_only_a_thread_that_waits_for_a_small_message_which_may_come_soon_looks(
    lent: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait here for ever."""
    monkeypatch.setattr(shared_stream, "LOOK_S", LONG_S)
    small = numbered(0, SMALL)
    posted = [while_blocked(lambda: lent.recv(small, tag=1))]  # nothing came quickly before
    posted[0].cancel(StepsCancelled())
    expect_soon(lent.there)
    posted.append(lent.recv(small, tag=2))  # it does something else meanwhile
    posted[1].cancel(StepsCancelled())
    for size in (0, INLINE_BYTES + 1, SHARED_EAGER_BYTES + 1):
        other = torch.zeros(size, dtype=torch.uint8)
        posted.append(while_blocked(lambda other=other: lent.recv(other, tag=3)))  # type: ignore[misc]
    posted.append(while_blocked(lambda: lent.recv(small, tag=4)))  # another receive waits to be told
    assert lent.there.queue_depths() == (4, 0, 0)
    sent = [lent.send(numbered(9, SMALL), tag=4)]
    wait_blocking(posted[-1])
    assert number_of(small) == 9
    for operation in sent + posted[2:-1]:
        operation.cancel(StepsCancelled())


def test_who_waits_for_a_peer_that_answers_soon_lends_it_memory_for_small_messages(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both, so that neither needs the socket any more."""
    monkeypatch.setattr(shared_stream, "LOOK_S", scaled(0.1))  # on a busy machine, too
    over = threading.Event()

    def send(stream: SharedStream, tensor: Tensor) -> None:
        wait_blocking(stream.send(USER, 0, describe(tensor), [memory_of(tensor)], [tensor]))

    def recv(stream: SharedStream, tensor: Tensor) -> None:
        expect_soon(stream)
        wait_blocking(while_blocked(lambda: stream.recv(USER, 0, describe(tensor), tensor)))

    def lead() -> None:
        tensor = torch.zeros(SMALL, dtype=torch.uint8)
        until = time.monotonic() + scaled(20)
        while not all(stream._reads.num_came for stream in pair.streams) and time.monotonic() < until:
            send(pair.here, tensor)
            recv(pair.here, tensor)
        over.set()
        send(pair.here, tensor)

    def follow() -> None:
        tensor = torch.zeros(SMALL, dtype=torch.uint8)
        while True:
            recv(pair.there, tensor)
            if over.is_set():
                return
            send(pair.there, tensor)

    errors = list[BaseException]()
    finished([started(lead, errors), started(follow, errors)], errors)
    for stream in pair.streams:
        assert stream._slot_writes is not None
        assert stream._reads.num_came > 0, "no small message came by a slot"


def test_threads_that_find_memory_lent_at_once_share_its_slots(lent: Pair) -> None:
    """A writer that began anew would count from 0."""
    slots = lent.here._slot_writes
    for _ in range(2):
        lent.here._use_memory()
    assert lent.here._slot_writes is slots


@pytest.mark.parametrize("name", ["SlotWriter", "PipeWrites"])
@pytest.mark.sources
def test_memory_is_begun_again_after_an_interrupt(pair: Pair, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pair.lend()
    with monkeypatch.context() as patches:
        patches.setattr(shared_sending, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            pair.here._use_memory()
    for number, size in enumerate((SMALL, MODERATE, 2_000_000)):
        tensor = torch.zeros(size, dtype=torch.uint8)
        receiving = pair.recv(tensor)
        wait_blocking(pair.send(numbered(number, size)))
        wait_blocking(receiving)
        assert number_of(tensor) == number
    assert pair.here._slot_writes is not None


@pytest.mark.sources
def test_an_interrupt_while_a_small_message_is_numbered_ends_the_connection(
    lent: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else slots would wait for that number for ever."""
    let_rest(lent)
    with monkeypatch.context() as patches:
        patches.setattr(stream_sending, "pack_header", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lent.send(numbered(1, SMALL))
    assert lent.here.connection.closed


def test_small_messages_go_into_slots_again_after_a_send_was_withdrawn(lent: Pair) -> None:
    withdrawn = lent.send(numbered(1, SHARED_EAGER_BYTES + 1), tag=3)
    assert withdrawn.cancel(StepsCancelled())
    let_look(lent)
    used = num_slots_used(lent.here)
    for number in range(4):
        wait_blocking(lent.send(numbered(number, SMALL)))
    assert num_slots_used(lent.here) == (used + 3) % NUM_SLOTS, "the first one has to go behind the withdrawal"
    assert [received(lent, size=SMALL) for _ in range(4)] == [0, 1, 2, 3]


def test_a_small_message_that_nobody_receives_keeps_nothing_in_the_ring(lent: Pair) -> None:
    let_look(lent)
    wait_blocking(lent.send(numbered(7, SMALL), tag=7))
    for number in range(3):
        wait_blocking(lent.send(numbered(number, SMALL)))
        assert received(lent, size=SMALL) == number
    assert lent.there._reads.kept_bytes == 0
    assert not lent.there._waiting
    assert received(lent, tag=7, size=SMALL) == 7


def test_a_look_ends_when_the_message_is_given_back(lent: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_stream, "LOOK_S", LONG_S)
    let_look(lent)
    wait_blocking(lent.send(numbered(5, SMALL)))
    taken = lent.recv(torch.zeros(SMALL, dtype=torch.uint8))
    assert taken.done
    let_rest(lent)
    errors, tensor = list[BaseException](), torch.zeros(SMALL, dtype=torch.uint8)
    thread = look_for(lent, tensor, errors)
    assert wait_until(lambda: looks(lent), timeout_s=5)
    taken.cancel_or_undo(StepsCancelled())
    finished([thread], errors)
    assert number_of(tensor) == 5


def test_small_messages_of_who_may_not_lend_memory_come_all_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedRegion, "create", classmethod(refuse))
    tensor = torch.zeros(SMALL, dtype=torch.uint8)
    for number in range(20):
        for stream in pair.streams:
            expect_soon(stream)
        receiving = while_blocked(lambda: pair.recv(tensor))
        wait_blocking(pair.send(numbered(number, SMALL)))
        wait_blocking(receiving)
        assert number_of(tensor) == number
        pair.answer()
    assert pair.there._refused or pair.memories[1].ready(0) is False


# ---- room


def test_what_waits_for_the_window_goes_before_what_is_sent_later(lent: Pair) -> None:
    """Each message but the first few waits; their pieces of the ring have numbers, too."""
    size = SHARED_EAGER_BYTES
    count = MOST + 5
    resume = lent.stop_reading()
    sends = [lent.send(numbered(number, size)) for number in range(count)]
    assert not sends[-1].done
    resume()
    for number in range(count):
        assert received(lent, size=size) == number
        sends.append(lent.send(numbered(count + number, size)))
    for number in range(count, 2 * count):
        assert received(lent, size=size) == number
    for send in sends:
        wait_blocking(send)


def test_a_ring_full_of_slots_that_nobody_looks_at_is_emptied(lent: Pair) -> None:
    """The last of them needs room, and its sender asks for it."""
    size = SHARED_EAGER_BYTES
    count = RING_BYTES // size + 2
    assert count * size < EAGER_WINDOW_BYTES
    for send in [lent.send(numbered(number, size)) for number in range(count)]:
        wait_blocking(send)
    assert [received(lent, size=size) for _ in range(count)] == list(range(count))


def test_who_asks_how_much_waits_hears_of_slots(lent: Pair) -> None:
    for number in range(4):
        wait_blocking(lent.send(numbered(number)))
    assert lent.there.queue_depths() == (0, 4, 0)
    assert received(lent) == 0
    assert lent.there.queue_depths() == (0, 3, 0)


def test_what_lies_in_slots_is_received_after_its_sender_has_left(lent: Pair) -> None:
    for number in range(3):
        wait_blocking(lent.send(numbered(number)))
    error = RuntimeError("the sender has left")
    lent.there.abort(error, keep_arrived=True)
    assert [received(lent) for _ in range(3)] == [0, 1, 2]
    receiving = lent.recv(numbered(0))
    assert wait_until(lambda: receiving.error is error, timeout_s=5)


def test_a_bye_comes_after_what_lies_in_slots(lent: Pair) -> None:
    for number in range(3):
        wait_blocking(lent.send(numbered(number)))
    finished_ = lent.here.finish()
    assert [received(lent) for _ in range(3)] == [0, 1, 2]
    wait_blocking(finished_)
    assert lent.there.said_bye


def test_a_broken_world_fails_what_waits_for_a_slot(lent: Pair) -> None:
    tensor = numbered(9)
    receiving = lent.recv(tensor)
    error = RuntimeError("the world is broken")
    lent.there.abort(error)
    assert wait_until(lambda: receiving.error is error, timeout_s=5)
    slots = lent.here._slot_writes
    assert slots is None or slots.has_room()
    assert number_of(tensor) == 9
    assert lent.there._slot_reads is None


def test_a_description_that_is_too_long_for_a_slot_goes_by_a_frame(lent: Pair) -> None:
    sent = torch.arange(MODERATE, dtype=torch.uint8).reshape((1,) * 40 + (MODERATE,))
    assert len(describe(sent)) > MAX_META_BYTES
    came = torch.zeros_like(sent)
    receiving = lent.recv(came)
    wait_blocking(lent.send(sent))
    wait_blocking(receiving)
    assert torch.equal(came, sent)


# ---- nonsense


def put(pair: Pair, **changes: Any) -> None:
    """Put a slot like the next honest one, but for some changes, and ring for it."""
    slots, space = pair.here._slot_writes, pair.here._space
    assert slots is not None
    seq = pair.here._outbox.issue_eager(MODERATE)
    offset = space.take(MODERATE)
    assert offset is not None
    honest = Slot(seq, key_of(USER, 0), offset, MODERATE, space.num_taken - 1, describe(numbered(0)))
    slots.put(honest._replace(**changes))
    pair.here.connection.send(pack_header(Kind.SLOTS))


NONSENSE = [
    {"seq": 0},
    {"size_bytes": 0},
    {"size_bytes": SHARED_EAGER_BYTES + 1},
    {"size_bytes": 2**64 - 1},
    {"offset": RING_BYTES - MODERATE + 1},
    {"offset": 2**64 - 1},
    {"meta": b"\xff" * MAX_META_BYTES},
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda changes: "-".join(map(str, changes)))
@pytest.mark.parametrize("when", ["before", "after", "another tag"])
def test_a_slot_full_of_nonsense_ends_the_connection_and_raises_nothing_to_who_receives(
    lent: Pair, nonsense: dict[str, Any], when: str
) -> None:
    """With the right description the receive looks at the slot itself."""
    if "size_bytes" in nonsense and nonsense["size_bytes"] <= 2**40:
        came = torch.zeros(nonsense["size_bytes"] + (nonsense["size_bytes"] == 0), dtype=torch.uint8)
    else:
        came = torch.zeros(MODERATE, dtype=torch.uint8)
    changes = {"meta": describe(came), **nonsense}
    tag = int(when == "another tag")
    if when == "before":
        receiving = lent.recv(came, tag)
        put(lent, **changes)
    else:
        put(lent, **changes)
        receiving = lent.recv(came, tag)
    assert wait_until(lambda: lent.there.connection.closed, timeout_s=5)
    assert not receiving.done
    error = RuntimeError("the world is broken")
    lent.there.abort(error)
    assert wait_until(lambda: receiving.error is error, timeout_s=5)
    assert not came.any()


@pytest.mark.parametrize("changes", [{"seq": 2**63}, {"piece": 2**63}], ids=["seq", "piece"])
def test_a_slot_that_waits_for_what_never_comes_is_left_alone(lent: Pair, changes: dict[str, Any]) -> None:
    """The peer stops only itself; what it has sent by frames still comes."""
    put(lent, **changes)
    receiving = lent.recv(torch.zeros(MODERATE, dtype=torch.uint8))
    lent.answer()
    assert not receiving.done
    assert not lent.there.connection.closed


def word(pair: Pair, at: int) -> ctypes.c_uint64:
    """Return a word of the slots from ``here`` to ``there``; ``at``: behind the pipe's words."""
    own = pair.memories[0].own
    assert own is not None
    return ctypes.c_uint64.from_address(own.address + pair.memories[0].offsets(0, 1).page + WORDS_AT + at)


def test_a_sender_that_counts_nonsense_loses_its_connection(lent: Pair) -> None:
    word(lent, writer_words(0)[0]).value += NUM_SLOTS + 1
    receiving = lent.recv(torch.zeros(MODERATE, dtype=torch.uint8))
    assert wait_until(lambda: lent.there.connection.closed, timeout_s=5)
    assert not receiving.done


@pytest.mark.parametrize(
    ("at", "by"),
    [(reader_words(0)[0], NUM_SLOTS + 1), (RELEASED_AT, 1), (RELEASED_AT, MAX_PIECES + 1), (CONSUMED_AT, 2**40)],
    ids=["taken", "released one too many", "released", "consumed"],
)
def test_a_receiver_that_counts_nonsense_loses_its_connection(lent: Pair, at: int, by: int) -> None:
    resume = lent.stop_reading()  # which would count anew what is true
    word(lent, at).value += by
    sends = [lent.send(numbered(number, INLINE_BYTES + 1)) for number in range(NUM_SLOTS + 1)]
    sends += [lent.send(numbered(number, SHARED_EAGER_BYTES)) for number in range(MOST)]  # now all are looked at
    assert wait_until(lambda: lent.here.connection.closed, timeout_s=5)
    resume()
    error = RuntimeError("the world is broken")
    lent.here.abort(error)
    assert wait_until(lambda: all(send.done for send in sends), timeout_s=5)


@pytest.mark.parametrize("where", ["slot", "slot, with another receive posted", "inbox"])
@pytest.mark.sources
def test_after_an_interrupted_receive_no_later_message_is_received(
    lent: Pair, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It may have taken one, which is lost; so its connection has ended, and with it what came behind."""
    let_look(lent)
    for number in (1, 2):
        wait_blocking(lent.send(numbered(number, SMALL)))
    if where == "inbox":
        lent.there.connection.run_and_wait(lent.there._take_slots_late)
        assert lent.there._inbox.num_arrived == 2
    tensor = torch.zeros(SMALL, dtype=torch.uint8)
    with monkeypatch.context() as patches:
        patches.setattr(lent.there, "_act" if where == "inbox" else "_report_soon", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lent.recv(tensor)
    assert lent.there.connection.closed
    if where == "slot, with another receive posted":
        lent.recv(torch.zeros(2 * SMALL, dtype=torch.uint8))
    receiving = lent.recv(tensor)
    assert not receiving.done or receiving.error is not None


def test_a_writer_that_takes_its_count_back_ends_the_connection(lent: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reader that is about to rest would look for ever for a slot that is there and is not."""
    slots = lent.there._slot_reads
    assert slots is not None
    let_rest(lent)
    monkeypatch.setattr(slots, "rest", lambda: False)
    monkeypatch.setattr(slots, "first", lambda: None)
    lent.recv(torch.zeros(SMALL, dtype=torch.uint8))
    assert wait_until(lambda: lent.there.connection.closed, 10)

"""Two streams of one process over a Unix socket and shared memory: a full ring, and payloads half way in the pipe."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.channel.payload.tensors import describe, memory_of, payload_segments
from multiworld.channel.shared_memory import pipe, pipe_payloads
from multiworld.channel.shared_memory.host_memory import RING_BYTES
from multiworld.channel.shared_memory.lent import MAX_KEPT_BYTES
from multiworld.channel.shared_memory.pipe import TAKEN_AT, WINDOW_BYTES, WRITTEN_AT
from multiworld.channel.shared_memory.pipe_payloads import PipeReads
from multiworld.channel.stream import message_stream as stream
from multiworld.channel.stream import shared_sending, shared_stream
from multiworld.channel.stream.message import USER
from multiworld.channel.stream.shared_sending import FLAG_LENT, INLINE_BYTES, LENT_PLACE, SHARED_EAGER_BYTES
from multiworld.channel.stream.shared_stream import KEPT_BYTES
from multiworld.testing import scaled, wait_until
from multiworld.wire.connection.frames import Kind, pack_header
from multiworld.wire.memory.copying import copied
from multiworld.wire.progress.operation import Operation, StepsCancelled
from multiworld.wire.progress.waiting import OperationCancelled, wait_blocking
from tests.unit.channel.stream.shared_pair import Pair

COUNT = 3 * RING_BYTES // (2 * SHARED_EAGER_BYTES)  # messages that the window allows, but not the ring at once


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn has all the time that it needs on a busy machine."""
    monkeypatch.setattr(pipe, "LIMIT_S", 1000.0)
    monkeypatch.setattr(pipe_payloads, "TURN_S", 1000.0)


@pytest.fixture
def pair(no_leaks: None) -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def fill(pair: Pair) -> tuple[list[Tensor], list[Operation[None]]]:
    """Send more than the ring holds; each message is its number."""
    tensors = [torch.full((SHARED_EAGER_BYTES,), number, dtype=torch.uint8) for number in range(COUNT)]
    return tensors, [pair.send(tensor) for tensor in tensors]


def received(pair: Pair) -> int:
    """Receive a message, and return which one it was."""
    tensor = torch.empty(SHARED_EAGER_BYTES, dtype=torch.uint8)
    wait_blocking(pair.recv(tensor))
    assert tensor.min() == tensor.max(), "half of a message"
    return int(tensor[0])


class SlowCopies:
    """Copies that are made when they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

        def copy(source: memoryview) -> memoryview:
            self.begun.set()
            assert self.go_on.wait(scaled(10))
            return copied(source)

        monkeypatch.setattr(shared_sending, "copied", copy)


def test_others_go_on_while_the_rest_of_a_cancelled_send_is_copied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.lend()
    resume = pair.stop_reading()
    tensors, sends = fill(pair)
    first = next(number for number, send in enumerate(sends) if not send.done)
    copies = SlowCopies(monkeypatch)
    cancels = [threading.Thread(target=sends[first].cancel, args=(StepsCancelled(),)) for _ in range(2)]
    for cancel in cancels:
        cancel.start()
    assert copies.begun.wait(scaled(5))
    last = pair.send(torch.full((SHARED_EAGER_BYTES,), COUNT, dtype=torch.uint8))  # the lock is free
    resume()
    assert [received(pair) for _ in range(first)] == list(range(first))
    assert all(cancel.is_alive() for cancel in cancels)  # the memory may still be read
    assert not last.done
    copies.go_on.set()
    for cancel in cancels:
        cancel.join()
    tensors[first].fill_(255)
    assert [received(pair) for _ in range(first, COUNT + 1)] == list(range(first, COUNT + 1))
    wait_blocking(last)


def test_without_memory_for_a_copy_the_connection_ends_and_the_rest_is_not_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(_: memoryview) -> memoryview:
        raise MemoryError

    pair.lend()
    resume = pair.stop_reading()
    tensors, sends = fill(pair)
    last = sends[-1]
    assert not last.done
    monkeypatch.setattr(shared_sending, "copied", copy)
    assert last.cancel(StepsCancelled())
    tensors[-1].fill_(255)
    resume()
    assert wait_until(lambda: pair.here.connection.closed, timeout_s=5)
    assert isinstance(last.error, StepsCancelled)


def test_whoever_hears_of_what_was_sent_may_send_when_memory_is_offered(pair: Pair) -> None:
    """The frame that offers it is written together with those before it."""
    small, answers = torch.tensor([7], dtype=torch.uint8), list[Operation[None]]()
    frame = pack_header(Kind.WINDOW)
    pair.here.connection.queue(frame, on_sent=lambda: answers.append(pair.send(small, tag=1)))
    pair.send(torch.zeros(2 * INLINE_BYTES, dtype=torch.uint8))
    came = torch.zeros(1, dtype=torch.uint8)
    wait_blocking(pair.recv(came, tag=1))
    assert came.item() == 7
    assert wait_until(lambda: len(answers) == 1, timeout_s=5), "the send has returned"
    assert wait_until(lambda: pair.memories[0].ready(1) is not None, timeout_s=5)
    assert pair.memories[0].ready(1)


def hold_cancelled(pair: Pair) -> tuple[Callable[[], None], list[Operation[None]]]:
    """Let cancelled sends wait for room in the ring. Return what lets the peer read, and what a leave waits for."""
    pair.lend()
    resume = pair.stop_reading()
    _, sends = fill(pair)
    for send in sends:
        send.cancel(StepsCancelled())
    return resume, pair.here.unsent()


def test_a_leave_waits_until_the_rest_of_a_cancelled_send_has_gone(pair: Pair) -> None:
    resume, unsent = hold_cancelled(pair)
    assert unsent
    resume()
    assert [received(pair) for _ in range(COUNT)] == list(range(COUNT))
    for operation in unsent:
        wait_blocking(operation)
    assert not pair.here.unsent()


def test_nobody_waits_for_what_a_lost_connection_keeps(pair: Pair) -> None:
    resume, unsent = hold_cancelled(pair)
    pair.here.connection.abort()
    for operation in unsent:
        wait_blocking(operation)
    resume()
    assert not pair.here.unsent()


def _no_memory(*_: object, **__: object) -> torch.Tensor:
    raise RuntimeError("no memory")


def test_without_memory_for_what_waits_in_the_ring_a_receive_fails_with_the_world(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.lend()
    monkeypatch.setattr(torch, "empty", _no_memory)
    for _ in range(KEPT_BYTES // SHARED_EAGER_BYTES + 1):
        pair.send(torch.zeros(SHARED_EAGER_BYTES, dtype=torch.uint8))
    receiving = pair.recv(torch.zeros(SHARED_EAGER_BYTES, dtype=torch.uint8), tag=1)  # for which all is looked through
    assert wait_until(lambda: pair.there.connection.closed, timeout_s=5)
    assert not receiving.done
    error = RuntimeError("the world is broken")
    pair.there.abort(error)
    assert wait_until(lambda: receiving.error is error, timeout_s=5)


def test_what_there_is_no_memory_for_is_lost_when_its_sender_leaves(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.lend()
    pair.send(torch.zeros(SHARED_EAGER_BYTES, dtype=torch.uint8))
    waiting = pair.recv(torch.zeros(1, dtype=torch.uint8), tag=1)
    assert wait_until(lambda: pair.there.has_complete(0), timeout_s=5)
    monkeypatch.setattr(torch, "empty", _no_memory)
    error = RuntimeError("the sender has left")
    pair.there.abort(error, keep_arrived=True)
    assert wait_until(lambda: waiting.error is error, timeout_s=5)
    receiving = pair.recv(torch.zeros(SHARED_EAGER_BYTES, dtype=torch.uint8))
    assert wait_until(lambda: receiving.error is error, timeout_s=5)


# ---- payloads that go through the pipe


LARGE = 3 * WINDOW_BYTES + 12345
ODD_SIZES = (1, 0, 1_000_003, 77, LARGE)


class HalfWay:
    """A large message of which one window has been written, and nothing read."""

    def __init__(self, pair: Pair) -> None:
        pair.lend()
        self.sent = torch.randint(0, 255, (LARGE,), dtype=torch.uint8)
        self.expected = self.sent.clone()
        self.came = torch.zeros(LARGE, dtype=torch.uint8)
        self.receiving = pair.recv(self.came)
        pair.answer()  # so it may be sent at once
        self.resume = pair.stop_reading()
        self.sending = pair.send(self.sent)
        assert pair.here._writes is not None
        assert pair.here._writes._end.position == WINDOW_BYTES
        assert not self.sending.done

    def check(self) -> None:
        wait_blocking(self.receiving)
        assert torch.equal(self.came, self.expected)


def half_read(pair: Pair, half_way: HalfWay) -> Callable[[], None]:
    """Let ``there`` read what is written, and nothing more be written until the returned function is called."""
    resume = pair.stop_reading(pair.here)
    half_way.resume()

    def num_read() -> int:
        return sum(incoming.received for incoming in pair.there._pipe_reads or ())

    assert wait_until(lambda: num_read() == WINDOW_BYTES, timeout_s=5)
    return resume


def test_large_messages_come_whole_in_both_directions(pair: Pair) -> None:
    HalfWay(pair).resume()
    sent, came = torch.randint(0, 255, (LARGE,), dtype=torch.uint8), torch.zeros(LARGE, dtype=torch.uint8)
    receiving = pair.here.recv(USER, 5, describe(came), came)
    wait_blocking(pair.there.send(USER, 5, describe(sent), [memory_of(sent)], [sent]))
    wait_blocking(receiving)
    assert torch.equal(came, sent)
    assert pair.there._writes is not None
    assert pair.there._writes._end.position == LARGE


def test_a_large_message_that_is_cancelled_half_way_goes_on_from_a_copy(pair: Pair) -> None:
    half_way = HalfWay(pair)
    assert half_way.sending.cancel(StepsCancelled())
    half_way.sent.fill_(255)
    half_way.resume()
    half_way.check()
    assert isinstance(half_way.sending.error, StepsCancelled)


@pytest.mark.sources
def test_what_had_come_of_a_cancelled_receive_is_copied_to_memory_that_outlasts_the_stream(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The world may break while a thread copies: that once wrote to memory which was gone, and killed the process."""
    half_way = HalfWay(pair)
    resume = half_read(pair, half_way)
    allocate = pair.there._allocate
    buffers: list[weakref.ref[Tensor]] = []
    outlasted: list[bool] = []

    def remember(size_bytes: int) -> Tensor:
        buffer = allocate(size_bytes)
        buffers.append(weakref.ref(buffer))
        return buffer

    def copy(target: memoryview, source: memoryview) -> None:
        pair.there.abort(RuntimeError("the world is broken"))
        pair.there.connection.run_and_wait(lambda: None)
        outlasted.append(buffers[0]() is not None)

    monkeypatch.setattr(pair.there, "_allocate", remember)
    monkeypatch.setattr(stream, "copy_into", copy)
    assert half_way.receiving.cancel(StepsCancelled())
    resume()
    assert outlasted == [True]


def test_a_large_message_that_waits_behind_another_one_is_copied_too(pair: Pair) -> None:
    pair.lend()
    came = [torch.zeros(LARGE, dtype=torch.uint8) for _ in range(3)]
    receives = [pair.recv(tensor) for tensor in came]
    pair.answer()
    resume = pair.stop_reading()
    sent = [torch.full((LARGE,), number, dtype=torch.uint8) for number in range(3)]
    sends = [pair.send(tensor) for tensor in sent]
    for number in (2, 1):
        assert sends[number].cancel(StepsCancelled())
        sent[number].fill_(255)
    resume()
    for number, receive in enumerate(receives):
        wait_blocking(receive)
        assert came[number].min() == came[number].max() == number
    wait_blocking(sends[0])


def test_others_go_on_while_the_rest_of_a_large_send_is_copied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    half_way = HalfWay(pair)
    copies = SlowCopies(monkeypatch)
    cancels = [threading.Thread(target=half_way.sending.cancel, args=(StepsCancelled(),)) for _ in range(2)]
    for cancel in cancels:
        cancel.start()
    assert copies.begun.wait(scaled(5))
    half_way.resume()
    for size in (1, SHARED_EAGER_BYTES):
        came = torch.zeros(size, dtype=torch.uint8)
        wait_blocking(pair.send(torch.ones(size, dtype=torch.uint8), tag=1))
        wait_blocking(pair.recv(came, tag=1))
        assert came.min() == 1
    assert all(cancel.is_alive() for cancel in cancels)  # the memory may still be read
    assert not half_way.receiving.done
    copies.go_on.set()
    for cancel in cancels:
        cancel.join()
    half_way.sent.fill_(255)
    half_way.check()


def test_without_memory_for_a_copy_of_a_large_send_the_connection_ends(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(_: memoryview) -> memoryview:
        raise MemoryError

    half_way = HalfWay(pair)
    monkeypatch.setattr(shared_sending, "copied", copy)
    assert half_way.sending.cancel(StepsCancelled())
    half_way.sent.fill_(255)
    half_way.resume()
    assert wait_until(lambda: pair.there.connection.closed, timeout_s=5)
    assert not half_way.receiving.done
    assert 255 not in half_way.came


def test_a_leave_waits_until_the_rest_of_a_large_cancelled_send_is_written(pair: Pair) -> None:
    half_way = HalfWay(pair)
    half_way.sending.cancel(StepsCancelled())
    unsent = pair.here.unsent()
    assert unsent
    assert not any(operation.done for operation in unsent)
    half_way.resume()
    for operation in unsent:
        wait_blocking(operation)
    wait_blocking(pair.here.finish())
    half_way.check()
    assert not pair.here.unsent()


def test_a_large_receive_that_is_cancelled_half_way_leaves_its_tensor_alone_and_its_message_there(pair: Pair) -> None:
    half_way = HalfWay(pair)
    resume = half_read(pair, half_way)
    assert half_way.receiving.cancel(StepsCancelled())
    half_way.came.fill_(77)
    again = torch.zeros(LARGE, dtype=torch.uint8)
    receiving = pair.recv(again)
    resume()
    wait_blocking(receiving)
    assert torch.equal(again, half_way.expected)
    assert half_way.came.min() == half_way.came.max() == 77


def test_a_large_receive_that_is_cancelled_before_anything_was_read_leaves_its_message_there(pair: Pair) -> None:
    """The message is on its way, and its receive cannot be told from others before."""
    half_way = HalfWay(pair)
    cancel = threading.Thread(target=half_way.receiving.cancel, args=(StepsCancelled(),))
    cancel.start()
    half_way.resume()
    cancel.join()
    half_way.came.fill_(77)
    again = torch.zeros(LARGE, dtype=torch.uint8)
    wait_blocking(pair.recv(again))
    assert torch.equal(again, half_way.expected)
    assert half_way.came.min() == half_way.came.max() == 77


def write_more(pair: Pair) -> None:
    """Fill the window anew, whatever has become of the connection."""
    writes = pair.here._writes
    assert writes is not None
    with pair.here._issue_lock:
        writes.write()
    assert writes._end.position == 2 * WINDOW_BYTES


def test_without_memory_for_the_rest_of_a_cancelled_receive_its_tensor_is_left_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_way = HalfWay(pair)
    resume = half_read(pair, half_way)
    monkeypatch.setattr(torch, "empty", _no_memory)
    assert half_way.receiving.cancel(StepsCancelled())
    assert pair.there.connection.closed
    half_way.came.fill_(77)
    write_more(pair)
    reads = pair.there._pipe_reads
    assert reads is not None
    pair.there.connection.run_and_wait(reads.read)  # as whoever was about to
    resume()
    assert half_way.came.min() == half_way.came.max() == 77


def test_nothing_is_read_through_the_pipe_when_the_connection_has_ended(pair: Pair) -> None:
    """A turn of reading was over, and the thread that goes on comes too late."""
    half_way = HalfWay(pair)
    resume = half_read(pair, half_way)
    pair.there.connection.abort()
    write_more(pair)
    reads = pair.there._pipe_reads
    assert reads is not None
    pair.there._read_again()
    pair.there.connection.run_and_wait(lambda: None)
    assert [incoming.received for incoming in reads] == [WINDOW_BYTES]
    resume()


def test_small_messages_stay_behind_a_large_one_of_their_tag_and_pass_it_on_others(pair: Pair) -> None:
    half_way = HalfWay(pair)
    sizes = (1, 2 * INLINE_BYTES, SHARED_EAGER_BYTES)
    for tag in (0, 1):
        for size in sizes:
            pair.send(torch.full((size,), tag + 1, dtype=torch.uint8), tag=tag)
    resume = half_read(pair, half_way)
    came = {(tag, size): torch.zeros(size, dtype=torch.uint8) for tag in (0, 1) for size in sizes}
    receives = {(tag, size): pair.recv(tensor, tag) for (tag, size), tensor in came.items()}
    for size in sizes:
        wait_blocking(receives[1, size])
    assert not half_way.receiving.done
    resume()
    half_way.check()
    for size in sizes:
        wait_blocking(receives[0, size])
    assert all(tensor.min() == tensor.max() == tag + 1 for (tag, _), tensor in came.items())


def test_a_large_message_stays_behind_what_waits_for_room(pair: Pair) -> None:
    """Its frame must not overtake theirs, which have the numbers before it."""
    pair.lend()
    came = torch.zeros(LARGE, dtype=torch.uint8)
    large = pair.recv(came, tag=1)
    pair.answer()
    resume = pair.stop_reading()
    _, sends = fill(pair)
    assert not sends[-1].done
    sending = pair.send(torch.full((LARGE,), 3, dtype=torch.uint8), tag=1)
    resume()
    wait_blocking(large)
    wait_blocking(sending)
    assert came.min() == came.max() == 3
    assert [received(pair) for _ in range(COUNT)] == list(range(COUNT))


def test_messages_whose_receives_do_not_wait_go_through_the_pipe_later(pair: Pair) -> None:
    pair.lend()
    sent = [torch.full((LARGE,), number, dtype=torch.uint8) for number in range(4)]
    sends = [pair.send(tensor, tag=number) for number, tensor in enumerate(sent)]
    for number in (2, 0, 3, 1):
        came = torch.zeros(LARGE, dtype=torch.uint8)
        wait_blocking(pair.recv(came, tag=number))
        assert came.min() == came.max() == number
        wait_blocking(sends[number])


@pytest.mark.sources
def test_what_a_bye_finds_in_the_window_is_received(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no bell has come for it."""
    read = PipeReads.read

    def read_at_the_end(reads: PipeReads, *, to_the_end: bool = False) -> None:
        if to_the_end:
            read(reads, to_the_end=True)

    pair.lend()
    monkeypatch.setattr(PipeReads, "read", read_at_the_end)
    size = WINDOW_BYTES // 2
    came = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
    receives = [pair.recv(tensor) for tensor in came]
    pair.answer()
    for number in (1, 2):
        wait_blocking(pair.send(torch.full((size,), number, dtype=torch.uint8)))
    pair.answer()
    assert not any(receive.done for receive in receives)
    wait_blocking(pair.here.finish())
    for number, receive in enumerate(receives):
        wait_blocking(receive)
        assert came[number].min() == came[number].max() == number + 1
    assert pair.there.said_bye


def test_a_bye_before_the_end_of_a_large_message_is_an_error(pair: Pair) -> None:
    half_way = HalfWay(pair)
    pair.here.connection.send(pack_header(Kind.BYE))
    pair.here.abort(RuntimeError("it has left"))
    half_way.resume()
    assert wait_until(lambda: pair.there.connection.closed, timeout_s=5)
    assert not pair.there.said_bye
    assert not half_way.receiving.done
    error = RuntimeError("the world is broken")
    pair.there.abort(error)
    assert wait_until(lambda: half_way.receiving.error is error, timeout_s=5)


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_an_abort_ends_a_large_message_that_is_half_way_at_both_ends(pair: Pair, who: str) -> None:
    half_way = HalfWay(pair)
    resume = half_read(pair, half_way)
    error = RuntimeError("the world is broken")
    streams = pair.streams if who == "sender" else pair.streams[::-1]
    streams[0].abort(error)
    resume()
    assert wait_until(lambda: streams[1].connection.closed, timeout_s=5)
    assert who == "receiver" or wait_until(lambda: not pair.here.unsent(), timeout_s=5)
    streams[1].abort(error)
    assert wait_until(lambda: half_way.sending.error is half_way.receiving.error is error, timeout_s=5)
    for end in pair.streams:
        assert (end._writes, end._pipe_reads) == (None, None), "they know addresses of memory that ends now"
    half_way.came.fill_(77)
    half_way.sent.fill_(88)
    for tensor, operation in ((half_way.sent, pair.send(half_way.sent)), (half_way.came, pair.recv(half_way.came))):
        assert wait_until(lambda operation=operation: operation.error is error, timeout_s=5)  # type: ignore[misc]
        assert tensor.min() == tensor.max()


def test_nobody_waits_for_a_large_message_whose_connection_was_lost(pair: Pair) -> None:
    half_way = HalfWay(pair)
    half_way.sending.cancel(StepsCancelled())
    unsent = pair.here.unsent()
    assert unsent
    pair.there.connection.abort()
    half_way.resume()
    for operation in unsent:
        wait_blocking(operation)
    assert pair.here._writes is not None
    assert not pair.here._writes.waiting


def test_memory_is_not_given_back_while_something_lies_in_it(pair: Pair) -> None:
    half_way = HalfWay(pair)
    pair.here._forget_later(pair.here._num_written)
    half_way.resume()
    half_way.check()


def word(pair: Pair, at: int) -> ctypes.c_uint64:
    """Return a word of the pipe from ``here`` to ``there``."""
    own = pair.memories[0].own
    assert own is not None
    return ctypes.c_uint64.from_address(own.address + pair.memories[0].offsets(0, 1).page + at)


def test_a_sender_that_counts_nonsense_loses_its_connection(pair: Pair) -> None:
    half_way = HalfWay(pair)
    word(pair, WRITTEN_AT).value += WINDOW_BYTES + 1
    half_way.resume()
    assert wait_until(lambda: pair.there.connection.closed, timeout_s=5)
    assert not half_way.receiving.done
    assert not half_way.came.any()


def test_a_receiver_that_counts_nonsense_loses_its_connection(pair: Pair) -> None:
    half_way = HalfWay(pair)
    word(pair, TAKEN_AT).value = WINDOW_BYTES + 1
    pair.there.connection.send(pack_header(Kind.ROOM))
    assert wait_until(lambda: pair.here.connection.closed, timeout_s=5)
    assert word(pair, WRITTEN_AT).value == WINDOW_BYTES
    assert not half_way.sending.done
    half_way.resume()


def test_memory_that_a_pipe_is_in_stays_whatever_its_peer_says(pair: Pair) -> None:
    """It is offered again, without a descriptor, when the world has just ended here, and its memory with it."""
    half_way = HalfWay(pair)
    pair.memories[1].close(RuntimeError("the world has ended"))
    pair.here.connection.send(pack_header(Kind.SHARE))
    half_way.resume()
    pair.answer()
    assert pair.there._peer_ring is not None
    half_way.check()


class Elsewhere:
    """True, but on one thread."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name

    def __bool__(self) -> bool:
        return threading.current_thread().name != self._thread_name


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.sources
def test_with_a_peer_that_cannot_use_shared_memory_messages_go_through_the_socket(
    pair: Pair, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (shared_sending, shared_stream):
        monkeypatch.setattr(module, "PIPES_WORK", Elsewhere(f"test-shared-stream-{rank}"))
    pair.lend()
    pair.streams[rank]._peer_has_pipes = False  # as it was on its thread, and is everywhere where there are no pipes
    for sender, receiver in (pair.streams, pair.streams[::-1]):
        for size in (INLINE_BYTES + 1, LARGE):
            sent, came = torch.randint(0, 255, (size,), dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
            receiving = receiver.recv(USER, 0, describe(came), came)
            wait_blocking(sender.send(USER, 0, describe(sent), [memory_of(sent)], [sent]))
            wait_blocking(receiving)
            assert torch.equal(came, sent)
        assert sender._ring is None
        assert sender._writes is None


def test_large_payloads_of_several_tensors_of_odd_sizes_arrive(pair: Pair) -> None:
    """What lies between them for their alignment can't be written."""
    pair.lend()
    payload = {f"{number}": torch.randint(0, 255, (size,), dtype=torch.uint8) for number, size in enumerate(ODD_SIZES)}
    for _ in range(2):
        receiving = pair.there.recv(USER, 0, None, None)
        pair.answer()
        meta, segments, tensors = payload_segments(payload)
        sending = pair.here.send(USER, 0, meta, segments, tensors)
        came = wait_blocking(receiving)
        wait_blocking(sending)
        assert isinstance(came, dict)
        assert came.keys() == payload.keys()
        assert all(torch.equal(came[key], payload[key]) for key in payload)


def test_an_interrupted_large_send_writes_nothing_more(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was being written nobody knows how much has gone."""
    half_way = HalfWay(pair)
    writes = pair.here._writes
    assert writes is not None
    push = writes._end.push

    def interrupted(source: int, size_bytes: int, spin_s: float) -> int:
        push(source, size_bytes // 2, spin_s)
        raise KeyboardInterrupt

    monkeypatch.setattr(writes._end, "push", interrupted)
    word(pair, TAKEN_AT).value = WINDOW_BYTES // 2
    with pytest.raises(KeyboardInterrupt):
        pair.here._room_came()
    monkeypatch.undo()
    position = writes._end.position
    assert pair.here.connection.closed
    half_way.sending.cancel(StepsCancelled())
    pair.here._room_came()
    assert writes._end.position == position
    half_way.resume()
    assert not half_way.receiving.done or half_way.receiving.error is not None


# ---- large payloads that stay where they came

KEPT_SIZE = MAX_KEPT_BYTES // 3


def receive_any(pair: Pair, tag: int = 0) -> Operation[Payload]:
    return pair.there.recv(USER, tag, None, None)


def lies_in_memory(pair: Pair, tensor: Tensor) -> bool:
    region = pair.there._peer_ring
    assert region is not None
    return 0 <= tensor.data_ptr() - region.address < region.size_bytes


def num_lent(pair: Pair) -> int:
    """How many payloads have gone there, ever."""
    assert pair.here._lent_writes is not None
    return pair.here._lent_writes._space._last


def resident_bytes(pair: Pair) -> int:
    """How much of what one lends the other takes memory."""
    region = pair.memories[0].own
    assert region is not None
    present = (ctypes.c_ubyte * (region.size_bytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(region.address), ctypes.c_size_t(region.size_bytes), present) == 0
    return mmap.PAGESIZE * sum(flag & 1 for flag in present)


def kept(pair: Pair, value: int, size: int = KEPT_SIZE, *, tag: int = 0) -> Tensor:
    """Have something sent to who takes whatever comes, and waits for it."""
    receiving = receive_any(pair, tag)
    pair.answer()
    sent = torch.full((size,), value, dtype=torch.uint8)
    sending = pair.send(sent, tag)
    wait_blocking(sending)
    sent.fill_(255)  # it is the sender's again
    payload = wait_blocking(receiving)
    assert isinstance(payload, Tensor)
    assert payload.min() == payload.max() == value
    return payload


def test_a_large_payload_of_any_form_stays_where_it_came(pair: Pair) -> None:
    pair.lend()
    first, second = kept(pair, 1), kept(pair, 2)
    assert lies_in_memory(pair, first)
    assert lies_in_memory(pair, second)
    first.fill_(7)
    assert second.min() == second.max() == 2
    at = first.data_ptr()
    del first
    assert kept(pair, 3).data_ptr() == at


def test_what_the_lent_memory_has_no_room_for_goes_through_the_pipe(pair: Pair) -> None:
    pair.lend()
    size = MAX_KEPT_BYTES
    held = [kept(pair, value, size) for value in range(10)]
    assert [lies_in_memory(pair, tensor) for tensor in held] == [True] * 8 + [False] * 2
    assert all(tensor.min() == tensor.max() == value for value, tensor in enumerate(held))
    assert not lies_in_memory(pair, kept(pair, 9, size + 1))
    held.clear()
    assert lies_in_memory(pair, kept(pair, 8, size))


def test_several_tensors_stay_where_they_came(pair: Pair) -> None:
    pair.lend()
    payload = {"a": torch.randn(300, 1001), "b": torch.arange(5), "c": torch.randn(0, 3), "d": torch.randn(700, 901)}
    meta, segments, tensors = payload_segments(payload)
    receiving = receive_any(pair)
    pair.answer()
    wait_blocking(pair.here.send(USER, 0, meta, segments, tensors))
    came = wait_blocking(receiving)
    assert isinstance(came, dict)
    assert list(came) == list(payload)
    assert all(torch.equal(came[name], tensor) for name, tensor in payload.items())
    assert lies_in_memory(pair, came["a"])
    assert lies_in_memory(pair, came["d"])


def test_a_receive_with_memory_of_its_own_gets_it_there_whatever_the_one_before_it_took(pair: Pair) -> None:
    pair.lend()
    any_form = receive_any(pair)  # its credit says that what comes is kept; the message will be another receive's
    pair.answer()
    assert any_form.cancel(StepsCancelled())
    came = torch.zeros(KEPT_SIZE, dtype=torch.uint8)
    receiving = pair.recv(came)
    wait_blocking(pair.send(torch.full((KEPT_SIZE,), 5, dtype=torch.uint8)))
    wait_blocking(receiving)
    assert came.min() == came.max() == 5
    assert not lies_in_memory(pair, came)
    assert num_lent(pair) == 1, "the hint was wrong"
    assert lies_in_memory(pair, kept(pair, 6))
    assert num_lent(pair) == 2


def test_what_came_for_a_cancelled_receive_waits_in_lent_memory_for_the_next(pair: Pair) -> None:
    pair.lend()
    receiving = receive_any(pair)
    pair.answer()
    wait_blocking(pair.send(torch.full((KEPT_SIZE,), 4, dtype=torch.uint8)))
    assert wait_until(lambda: receiving.done, timeout_s=5)
    receiving.cancel_or_undo(OperationCancelled())
    again = wait_blocking(receive_any(pair))
    assert isinstance(again, Tensor)
    assert again.min() == again.max() == 4
    assert lies_in_memory(pair, again)


def test_what_lies_in_lent_memory_outlasts_the_stream_and_its_memory(pair: Pair) -> None:
    pair.lend()
    payload = kept(pair, 6)
    for end, memory in zip(pair.streams, pair.memories, strict=True):
        end.abort(RuntimeError("the world broke"))
        memory.close(RuntimeError("the world broke"))
    assert payload.min() == payload.max() == 6


def test_what_is_kept_keeps_its_memory_when_the_rest_is_given_back(pair: Pair) -> None:
    pair.lend()
    held = [kept(pair, value) for value in range(5)]
    taken = resident_bytes(pair)
    second = held[1]
    held.clear()
    pair.here._forget_later(pair.here._num_written)
    left = resident_bytes(pair)
    assert left <= taken - 4 * KEPT_SIZE
    assert second.min() == second.max() == 1
    assert pair.here._forget_timer, "it is looked after again"
    del second
    pair.here._forget_later(pair.here._num_written)
    assert resident_bytes(pair) <= left - KEPT_SIZE
    assert lies_in_memory(pair, kept(pair, 3))


def test_large_payloads_stay_behind_what_is_in_the_pipe(pair: Pair) -> None:
    half_way = HalfWay(pair)
    receiving = receive_any(pair)
    resume = half_read(pair, half_way)
    pair.send(torch.full((KEPT_SIZE,), 3, dtype=torch.uint8))
    assert not receiving.done
    resume()
    half_way.check()
    payload = wait_blocking(receiving)
    assert isinstance(payload, Tensor)
    assert payload.min() == payload.max() == 3
    assert num_lent(pair) == 0


def test_what_its_sender_left_there_is_received_when_it_has_gone(pair: Pair) -> None:
    pair.lend()
    first, second = receive_any(pair), receive_any(pair)
    pair.answer()
    for value in (1, 2):
        wait_blocking(pair.send(torch.full((KEPT_SIZE,), value, dtype=torch.uint8)))
    assert wait_until(lambda: second.done, timeout_s=5)
    for receiving in (second, first):
        receiving.cancel_or_undo(OperationCancelled())
    pair.here.abort(RuntimeError("it died"))
    pair.there.abort(RuntimeError("it died"), keep_arrived=True)
    for value in (1, 2):
        payload = wait_blocking(receive_any(pair))
        assert isinstance(payload, Tensor)
        assert payload.min() == payload.max() == value


@pytest.mark.parametrize(
    "place",
    [(0, KEPT_SIZE, 0, 0), (1 << 40, KEPT_SIZE, 0, 1), (0, 1 << 40, 0, 1), (0, KEPT_SIZE, 64, 1), (8, KEPT_SIZE, 0, 1)],
)
def test_a_place_that_cannot_be_ends_the_connection(
    pair: Pair, place: tuple[int, int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    pair.lend()
    receive_any(pair)
    meta = LENT_PLACE.pack(*place) + describe(torch.empty(KEPT_SIZE, dtype=torch.uint8))
    pair.here.connection.send(pack_header(Kind.MESSAGE, flags=FLAG_LENT | 2, meta_bytes=len(meta), seq=1) + meta)
    assert wait_until(lambda: pair.there.connection.closed, timeout_s=5)
    assert "lent memory" in caplog.text

"""Framed connections on loopback: order, large payloads, threads that read and write at once, aborts, interrupts."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from multiworld.testing import scaled, wait_until
from multiworld.wire.connection.connection import Connection
from multiworld.wire.connection.frames import Header
from multiworld.wire.connection.write_queue import WriteQueue
from multiworld.wire.progress.interest import READ_EVENTS, Interest
from multiworld.wire.progress.operation import Operation, settler
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from tests.unit.wire.connected import Pair, Sink, clog, connected_pair, message


@pytest.fixture
def pair(no_leaks: None) -> Iterator[Pair]:
    with connected_pair() as pair:
        yield pair


def test_frames_arrive_in_order_with_their_meta_and_payload(pair: Pair) -> None:
    for seq in range(200):
        payload = bytes([seq]) * (seq * 500)
        pair.left.send(message(payload, seq, b"meta %d" % seq), payload)
    for seq, (header, meta, payload) in enumerate(pair.received(200)):
        assert (header.seq, meta, payload) == (seq, b"meta %d" % seq, bytes([seq]) * (seq * 500))


def test_a_frame_of_more_segments_than_the_kernel_takes_at_once_arrives_whole(pair: Pair) -> None:
    pieces = [bytes([index % 251]) * (1 + index % 3) for index in range(5000)]
    whole = b"".join(pieces)
    pair.left.send(message(whole), *pieces)
    pair.left.send(message(b"", 1))
    assert [payload for _, _, payload in pair.received(2)] == [whole, b""]


def test_headers_and_small_frames_behind_large_payloads_arrive_whole(pair: Pair) -> None:
    sizes = [200_000, 0, 1, 5_000, 300_000, 131_072, 70_000, 20_000, 500_000, 3_000]
    for seq, size in enumerate(sizes):
        payload, meta = bytes([seq]) * size, b"m" * (3_000 if seq % 2 else 7)
        pair.left.send(message(payload, seq, meta), payload)
    for seq, (header, meta, payload) in enumerate(pair.received(len(sizes))):
        assert (header.seq, len(meta)) == (seq, 3_000 if seq % 2 else 7)
        assert payload == bytes([seq]) * sizes[seq]


def test_frames_of_many_threads_never_mix(pair: Pair) -> None:
    def send(number: int) -> None:
        for seq in range(50):
            payload = bytes([number]) * (1000 * (seq % 5) + seq)
            pair.left.send(message(payload, number * 1000 + seq), payload[: seq // 2], payload[seq // 2 :])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frames = pair.received(300)
    for number in range(6):
        seqs = [header.seq for header, _, _ in frames if header.seq // 1000 == number]
        assert seqs == [number * 1000 + seq for seq in range(50)]
    assert all(payload == bytes([header.seq // 1000]) * header.payload_bytes for header, _, payload in frames)


def test_sent_is_told_when_the_memory_may_change(pair: Pair) -> None:
    sent: Operation[None] = Operation()
    payload = bytes(20_000_000)
    pair.left.send(message(payload), payload, on_sent=settler(sent))
    wait_blocking(sent)
    assert pair.received(1)[0][2] == payload


def test_a_call_at_flush_waits_for_that_and_keeps_no_frame_from_being_written_at_once(pair: Pair) -> None:
    called: list[str] = []
    pair.left.call_at_flush(lambda: called.append("now"))
    assert pair.left.send_now(message(b"", 7))
    assert pair.received(1)[0][0].seq == 7
    assert called == []
    pair.left.flush()
    assert called == ["now"]
    pair.left.call_at_flush(lambda: called.append("too late"))
    pair.left.abort()
    pair.left.flush()
    assert called == ["now"]


def test_what_was_detached_is_sent_from_a_copy(pair: Pair) -> None:
    told: list[object] = []
    owner = object()
    payload = bytearray(b"x" * 30_000_000)
    pair.left.send(message(payload), memoryview(payload), on_sent=partial(told.append, owner))
    pair.left.detach_unsent(owner)
    payload[:] = b"y" * len(payload)
    assert set(pair.received(1)[0][2]) == {ord("x")}
    assert told in ([], [owner])


def complete(operation: Operation[object]) -> None:
    operation.succeed(None)


def test_a_thread_that_waits_reads_for_itself_until_its_operation_is_done(pair: Pair) -> None:
    operation: Operation[object] = Operation()
    reading: list[str] = []

    def on_frame(header: Header) -> None:
        reading.append(threading.current_thread().name)
        if header.seq == 3:
            pair.right.defer(partial(complete, operation))

    pair.right_sink.on_frame = on_frame
    waiting = threading.Thread(
        target=wait_blocking,
        args=(operation,),
        kwargs={"help_with": lambda: pair.right.read_until(operation, 10)},
        name="waiting-thread",
    )
    waiting.start()
    assert wait_until(lambda: pair.right._interest.reading == 0, timeout_s=5)
    for seq in (1, 2, 3):
        pair.left.send(message(b"", seq))
    waiting.join(scaled(5))
    assert not waiting.is_alive()
    assert reading == ["waiting-thread"] * 3
    pair.left.send(message(b"", 4))  # the progress thread reads again
    pair.received(4)
    assert reading[3] == "test-connection"


def test_reading_for_oneself_ends_with_the_time_and_with_the_connection(pair: Pair) -> None:
    ended, timed_out = threading.Event(), threading.Event()

    def read() -> None:  # not on the main thread, whose wake-up descriptor would stay
        pair.right.read_until(Operation(), 0)
        pair.right.read_until(Operation(), 0.01)
        timed_out.set()
        pair.right.read_until(Operation(), float("inf"))
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert timed_out.wait(scaled(5))
    assert wait_until(lambda: pair.right._interest.reading == 0, timeout_s=5)
    pair.left.abort("enough")
    assert ended.wait(scaled(5))
    thread.join()
    assert wait_until(lambda: pair.right_sink.lost_reasons == ["the connection was closed by the other side"], 5)
    assert wait_until(lambda: pair.left_sink.lost_reasons == ["enough"], 5)


def test_an_operation_that_is_completed_elsewhere_wakes_the_thread_that_reads_for_it(pair: Pair) -> None:
    operation: Operation[None] = Operation()
    thread = threading.Thread(target=pair.right.read_until, args=(operation, None))
    thread.start()
    assert wait_until(lambda: pair.right._interest.reading == 0, timeout_s=5)
    operation.succeed(None)
    thread.join(scaled(5))
    assert not thread.is_alive()


def test_a_thread_that_waits_for_a_large_send_leaves_reading_to_the_thread_that_sends(pair: Pair) -> None:
    """Which hears itself of what it may send next; so nobody is woken for that."""
    clog(pair.left, pair.right)
    pair.left._interest.set_reading(0)  # as after a thread that was about to come back
    pair.left.is_receiving = lambda: False
    pair.left.read_until(Operation(), None)
    assert pair.left._interest.reading == READ_EVENTS
    pair.left.is_receiving = lambda: True  # what comes is wanted here
    operation: Operation[None] = Operation()
    thread = threading.Thread(target=pair.left.read_until, args=(operation, None))
    thread.start()
    assert wait_until(lambda: pair.left._interest.reading == 0, timeout_s=5)
    operation.succeed(None)
    thread.join(scaled(5))
    assert not thread.is_alive()


def test_a_thread_that_reads_stops_when_nobody_waits_for_a_message_any_more_and_much_is_to_be_sent(pair: Pair) -> None:
    def on_frame(header: Header) -> None:
        pair.right.is_receiving = lambda: False

    pair.right_sink.on_frame = on_frame
    clog(pair.right, pair.left)
    operation: Operation[None] = Operation()
    thread = threading.Thread(target=pair.right.read_until, args=(operation, None))
    thread.start()
    assert wait_until(lambda: pair.right._interest.reading == 0, timeout_s=5)
    pair.left.send(message(b""))
    thread.join(scaled(5))
    assert not thread.is_alive()
    assert not operation.done
    assert pair.right._interest.reading == READ_EVENTS
    pair.left._interest.set_reading(READ_EVENTS)
    assert wait_until(lambda: len(pair.left_sink.frames) == 1, timeout_s=20)


def test_a_command_runs_with_the_read_side_held_whoever_reads(pair: Pair) -> None:
    seen: list[int] = []
    threads = [
        threading.Thread(target=pair.right.run_and_wait, args=(partial(seen.append, number),)) for number in range(20)
    ]
    for seq in range(50):
        pair.left.send(message(bytes(100_000), seq), bytes(100_000))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(scaled(5))
    assert sorted(seen) == list(range(20))
    pair.received(50)


def test_garbage_closes_the_connection_with_the_reason(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.left.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert wait_until(lambda: bool(pair.right_sink.lost_reasons), timeout_s=5)
    assert "not a multiworld frame" in pair.right_sink.lost_reasons[0]
    assert "not a multiworld frame" in caplog.text
    assert wait_until(lambda: bool(pair.left_sink.lost_reasons), timeout_s=5)


def test_a_defect_of_a_sink_closes_its_connection_alone(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def fail(header: Header) -> None:
        raise KeyError("defect")

    pair.right_sink.on_frame = fail
    other = Pair(pair.left.loop)
    pair.left.send(message(b""))
    assert wait_until(lambda: bool(pair.right_sink.lost_reasons), timeout_s=5)
    assert "defect" in caplog.text
    other.left.send(message(b""))
    other.received(1)
    other.left.abort()
    other.right.abort()


def test_a_defect_met_by_a_thread_that_reads_for_itself_is_not_its_own(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(header: Header) -> None:
        raise KeyError("defect")

    pair.right_sink.on_frame = fail
    thread = threading.Thread(target=pair.right.read_until, args=(Operation(), None))
    thread.start()
    assert wait_until(lambda: pair.right._interest.reading == 0, timeout_s=5)
    pair.left.send(message(b""))
    thread.join(scaled(5))
    assert not thread.is_alive()
    assert wait_until(lambda: pair.right_sink.lost_reasons == ["internal error"], timeout_s=5)
    caplog.clear()  # the traceback holds the thread's wake-up descriptor


def test_an_interrupt_in_the_middle_of_a_payload_closes_the_connection(pair: Pair) -> None:
    """Bytes that were read and not counted would shift all that follow: wrong data instead of an error."""

    def interrupt(header: Header) -> None:
        raise KeyboardInterrupt

    pair.right_sink.on_frame = interrupt
    interrupted = threading.Event()

    def read() -> None:
        try:
            pair.right.read_until(Operation(), None)
        except KeyboardInterrupt:
            interrupted.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert wait_until(lambda: pair.right._interest.reading == 0, timeout_s=5)
    pair.left.send(message(b""))
    assert interrupted.wait(scaled(5))
    thread.join()
    assert pair.right.closed
    assert wait_until(lambda: pair.right_sink.lost_reasons == ["interrupted while receiving"], timeout_s=5)


def test_one_deferred_call_that_fails_does_not_take_the_next_one_with_it(pair: Pair) -> None:
    done: Operation[None] = Operation()

    def fail() -> None:
        raise KeyError("defect")

    def command() -> None:
        pair.right.defer(fail)
        pair.right.defer(settler(done))

    pair.right.run_and_wait(command)
    wait_blocking(done)


def test_half_closing_sends_all_that_was_queued_first(pair: Pair) -> None:
    payload = bytes(5_000_000)
    pair.left.send(message(payload), payload)
    flushed = threading.Event()
    pair.left.finish_writing(flushed.set)
    assert flushed.wait(scaled(10))
    assert pair.received(1)[0][2] == payload
    assert wait_until(lambda: bool(pair.right_sink.lost_reasons), timeout_s=5)


def test_abort_tells_once_from_any_thread_and_drops_what_is_queued(pair: Pair) -> None:
    pair.left.send(message(bytes(100_000_000)), bytes(100_000_000))
    threads = [threading.Thread(target=pair.left.abort, args=("enough",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wait_until(lambda: pair.left_sink.lost_reasons == ["enough"], timeout_s=5)
    pair.left.send(b"dropped")
    assert pair.left.closed
    assert wait_until(lambda: len(pair.right_sink.lost_reasons) == 1, timeout_s=5)


@pytest.mark.sources
def test_a_connection_that_has_ended_needs_no_garbage_collector(pair: Pair) -> None:
    pair.left.send(message(b"last"), b"last")
    assert pair.received(1)[0][2] == b"last"
    pair.left.abort()
    assert wait_until(lambda: pair.left_sink.lost_reasons == ["closed here"], timeout_s=5)
    was_enabled, gone = gc.isenabled(), weakref.ref(pair.left)
    gc.disable()
    try:
        pair.left = pair.right
        assert wait_until(lambda: gone() is None, timeout_s=5)
    finally:
        if was_enabled:
            gc.enable()


def test_a_command_that_comes_while_another_runs_at_once_is_run_after_it(pair: Pair) -> None:
    ran: list[str] = []

    def command() -> bool:
        other = threading.Thread(target=lambda: pair.left.run(lambda: ran.append("other")))
        other.start()
        other.join()
        ran.append("first")
        return True

    assert pair.left.run_now(command)
    assert ran == ["first", "other"]


def test_what_is_queued_after_the_end_is_dropped_and_a_descriptor_closed(pair: Pair) -> None:
    pair.left.abort()
    assert wait_until(lambda: pair.left_sink.lost_reasons == ["closed here"], timeout_s=5)
    payload = bytearray(1000)
    pair.left.send(message(payload), memoryview(payload))
    payload.clear()  # BufferError if anybody held it
    reading, writing = os.pipe()
    pair.left.queue_descriptor(message(b""), writing, on_sent=partial(os.close, writing))
    assert os.read(reading, 1) == b"", "the writing end is open"
    os.close(reading)


def test_a_descriptor_that_still_waits_when_the_connection_ends_is_closed(pair: Pair) -> None:
    reading, writing = os.pipe()
    pair.left.queue_descriptor(message(b""), writing, on_sent=partial(os.close, writing))
    pair.left.abort()
    assert os.read(reading, 1) == b"", "the writing end is open"
    os.close(reading)


@pytest.mark.parametrize("is_late", [True, False], ids=["was cleared", "is cleared"])
def test_a_descriptor_is_closed_once_if_the_connection_ends_while_it_is_queued(pair: Pair, *, is_late: bool) -> None:
    class Ending(deque[Any]):
        """A queue whose connection ends before, or after, something gets into it."""

        def append(self, outgoing: Any) -> None:
            if not is_late:
                super().append(outgoing)
            pair.left.abort()
            assert wait_until(lambda: pair.left_sink.lost_reasons == ["closed here"], timeout_s=5)
            if is_late:
                super().append(outgoing)

    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    closed: list[int] = []

    def close() -> None:
        closed.append(writing)
        os.close(writing)

    pair.left._queue._outgoing = Ending()
    pair.left.queue_descriptor(message(b""), writing, on_sent=close)
    assert os.read(reading, 1) == b""
    assert closed == [writing]
    os.close(reading)


class Breaking(socket.socket):
    """Takes a few bytes, and then nothing any more."""

    def sendmsg(self, buffers: Any, ancdata: Any = (), *more: Any) -> int:
        if not ancdata:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        return super().sendmsg([next(iter(buffers))[:3]], ancdata, *more)


def test_a_descriptor_is_closed_if_the_connection_ends_amid_its_frame(no_leaks: None) -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    loop, sink = ProgressThread("test-descriptors"), Sink()
    connection = Connection(loop, Breaking(fileno=ours.detach()), sink)
    connection.queue_descriptor(message(b""), writing, on_sent=partial(os.close, writing))
    connection.flush()
    assert wait_until(lambda: sink.lost_reasons == ["Broken pipe"], timeout_s=5)
    theirs.close()  # with the copy that has come
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""
    os.close(reading)
    loop.stop()


class NoDescriptors(socket.socket):
    """As where too many descriptors are on their way between processes."""

    def sendmsg(self, buffers: Any, ancdata: Any = (), *more: Any) -> int:
        if ancdata:
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return super().sendmsg(buffers, ancdata, *more)


def test_a_frame_goes_without_its_descriptor_where_too_many_are_on_their_way(no_leaks: None) -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with closing(NoDescriptors(fileno=ours.detach())) as sending, closing(theirs):
        loop = ProgressThread("test-descriptors")
        failures: list[str] = []
        interest = Interest(loop, sending.fileno(), reading=0, writing=False)
        queue = WriteQueue(sending, interest, lambda reason, code=0: failures.append(reason))
        queue.queue_descriptor(b"a frame", writing, on_sent=partial(os.close, writing))
        queue.flush()
        loop.stop()
        assert theirs.recv(100) == b"a frame"
        assert os.read(reading, 1) == b""
        assert not failures
    os.close(reading)

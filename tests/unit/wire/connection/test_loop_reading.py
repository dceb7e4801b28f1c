"""A connection that an asyncio loop reads itself while messages come quickly, and who reads when it cannot."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from multiworld.testing import scaled, wait_until
from multiworld.wire.connection import watch
from multiworld.wire.connection.frames import Header
from multiworld.wire.progress.loop_reader import LoopReader
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import Timer
from tests.unit.wire.connected import Pair, clog, connected_pair, message

EVER_S = 3600.0


@pytest.fixture
def pair(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Once a message came, it counts as quick for ever; nobody patrols."""
    monkeypatch.setattr(watch, "HOT_S", EVER_S)
    monkeypatch.setattr(watch, "PATROL_S", EVER_S)
    with connected_pair() as pair:
        yield pair


@pytest.fixture
async def reader() -> AsyncIterator[LoopReader]:
    reader = LoopReader(asyncio.get_running_loop())
    yield reader
    reader.close()


def reached(items: list[int], count: int) -> bool:
    return len(items) >= count


async def until(holds: Callable[[], bool]) -> None:
    async def look() -> None:
        while not holds():  # noqa: ASYNC110 - nobody tells this test
            await asyncio.sleep(0.001)

    await asyncio.wait_for(look(), scaled(20))


async def received(pair: Pair, count: int) -> None:
    """Wait for so many frames without standing in the loop's way."""
    await until(lambda: len(pair.right_sink.frames) >= count)


async def let_the_loop_read(pair: Pair, reader: LoopReader) -> list[int]:
    """Return a list that gets the thread which ends each frame from now on; one has come."""
    pair.left.send(message(b"", 0))
    await received(pair, 1)
    assert pair.right.watch_from(reader) is not None
    return threads_of(pair)


async def let_it_be_kept(pair: Pair, reader: LoopReader, seq: int = 0) -> list[int]:
    """As ``let_the_loop_read``, for a loop that always listens."""
    come = len(pair.right_sink.frames)
    pair.left.send(message(b"", seq))
    await received(pair, come + 1)
    pair.right.keep_with(reader)
    assert pair.right._watch._watcher is reader
    return threads_of(pair)


def threads_of(pair: Pair) -> list[int]:
    threads: list[int] = []

    def on_frame(_: Header) -> None:
        threads.append(threading.get_ident())

    pair.right_sink.on_frame = on_frame
    return threads


async def test_the_loop_reads_messages_of_up_to_a_megabyte_itself(pair: Pair, reader: LoopReader) -> None:
    assert pair.right.watch_from(reader) is None, "nothing has come yet"
    threads = await let_the_loop_read(pair, reader)
    for seq, size in enumerate([0, 100, 40_000, 400_000, 1_000_000, 400_000, 5], 1):
        payload = bytes([seq]) * size
        pair.left.send(message(payload, seq), payload)
    await received(pair, 8)
    assert set(threads) == {threading.get_ident()}
    assert [header.seq for header, _, _ in pair.right_sink.frames] == list(range(8))
    assert all(payload == bytes([header.seq]) * len(payload) for header, _, payload in pair.right_sink.frames)


async def test_a_large_payload_goes_back_to_the_progress_thread_until_a_small_message_comes(
    pair: Pair, reader: LoopReader
) -> None:
    threads = await let_the_loop_read(pair, reader)
    payload = bytes(20_000_000)
    pair.left.send(message(payload, 1), payload)
    await received(pair, 2)
    assert threads[0] != threading.get_ident()
    assert pair.right.watch_from(reader) is None, "the next one may be as large"
    pair.left.send(message(b"", 2))
    await received(pair, 3)
    assert threads[1] != threading.get_ident()
    assert pair.right.watch_from(reader) is not None


async def test_a_call_that_blocks_the_loop_reads_in_its_place(pair: Pair, reader: LoopReader) -> None:
    threads = await let_the_loop_read(pair, reader)
    came: Operation[None] = Operation()

    def on_frame(_: Header) -> None:
        threads.append(threading.get_ident())
        came.succeed(None)

    pair.right_sink.on_frame = on_frame
    sending = threading.Timer(0.05, pair.left.send, (message(b"", 1),))
    sending.start()
    pair.right.read_until(came, scaled(10))
    assert came.done
    assert threads == [threading.get_ident()]
    assert pair.right.watch_from(reader) is not None, "the loop can have it again"
    sending.join()


async def test_a_call_that_waits_for_a_large_send_leaves_reading_to_the_thread_that_sends(
    pair: Pair, reader: LoopReader
) -> None:
    """The loop that it blocks cannot read."""
    threads = await let_the_loop_read(pair, reader)
    pair.right.is_receiving = lambda: False
    clog(pair.right, pair.left)
    pair.right.read_until(Operation(), None)
    pair.left.send(message(b"", 1))
    assert wait_until(lambda: len(threads) == 1, timeout_s=5)
    assert threads[0] != threading.get_ident()


async def test_a_loop_that_takes_a_connection_again_and_again_is_patrolled_once(
    pair: Pair, reader: LoopReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATROL_S", 0.05)
    await let_the_loop_read(pair, reader)
    patrols: list[float] = []
    call_later = pair.loop.call_later

    def count(delay_s: float, callback: Callable[[], None]) -> Timer:
        patrols.append(delay_s)
        return call_later(delay_s, callback)

    monkeypatch.setattr(pair.loop, "call_later", count)
    began = time.monotonic()
    for _ in range(100):
        pair.right._watch.end_loop_reading()
        assert pair.right.watch_from(reader) is not None
    await until(lambda: len(patrols) >= 3)
    assert len(patrols) <= 3 + (time.monotonic() - began) / 0.05


async def test_what_a_busy_loop_leaves_lying_is_read_by_the_progress_thread(
    pair: Pair, reader: LoopReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATROL_S", 0.001)
    threads = await let_the_loop_read(pair, reader)
    for seq in range(1, 4):
        pair.left.send(message(b"", seq))
        assert wait_until(partial(reached, threads, seq), timeout_s=20), "nobody reads while the loop is busy"
    assert threading.get_ident() not in threads


async def test_a_loop_that_always_listens_reads_until_nothing_has_come_for_long(
    pair: Pair, reader: LoopReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "HOT_S", 0.0)
    monkeypatch.setattr(watch, "KEPT_S", 0.5)
    monkeypatch.setattr(watch, "KEPT_PATROL_S", 1.0)  # not while it reads
    threads = await let_it_be_kept(pair, reader)
    for seq in range(1, 4):
        await asyncio.sleep(0.02)  # longer than a connection is hot that is not kept
        pair.left.send(message(b"", seq))
        await until(partial(reached, threads, seq))
    assert set(threads) == {threading.get_ident()}
    await until(lambda: pair.right._watch._watcher is None)
    pair.left.send(message(b"", 4))
    await received(pair, 5)
    assert threads[-1] != threading.get_ident(), "the progress thread took it back"
    await let_it_be_kept(pair, reader, seq=5)


async def test_what_comes_while_a_loop_that_listens_is_busy_is_read_by_the_progress_thread(
    pair: Pair, reader: LoopReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KEPT_PATROL_S", 0.001)
    threads = await let_it_be_kept(pair, reader)
    pair.left.send(message(b"", 1))
    assert wait_until(partial(reached, threads, 1), timeout_s=20), "nobody reads while the loop is busy"
    assert threading.get_ident() not in threads


async def test_the_progress_thread_reads_at_once_when_the_loop_that_listened_was_closed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KEPT_PATROL_S", 0.001)
    monkeypatch.setattr(watch, "KEPT_S", EVER_S)
    loop = asyncio.new_event_loop()
    reader = LoopReader(loop)
    threads = await let_it_be_kept(pair, reader)
    loop.close()
    await until(lambda: pair.right._watch._watcher is None)
    reader.close()
    pair.left.send(message(b"", 1))
    await until(partial(reached, threads, 1))


async def test_a_large_payload_that_a_patrol_meets_stays_with_the_progress_thread(
    pair: Pair, reader: LoopReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATROL_S", 0.001)
    threads = await let_the_loop_read(pair, reader)
    payload = bytes(2_000_000)
    pair.left.send(message(payload, 1), payload[:1_500_000])
    watched = pair.right._watch  # the patrol reads first, and then takes it from the loop
    assert wait_until(lambda: watched._large and watched._loop_reader is None, timeout_s=20)
    assert pair.right.watch_from(reader) is None
    pair.left.send(payload[1_500_000:])
    assert wait_until(partial(reached, threads, 1), timeout_s=20)
    pair.left.send(message(b"", 2))
    await received(pair, 3)
    assert threading.get_ident() not in threads


async def test_a_connection_that_the_loop_reads_can_be_closed(pair: Pair, reader: LoopReader) -> None:
    await let_the_loop_read(pair, reader)
    pair.left.abort()
    await until(lambda: bool(pair.right_sink.lost_reasons))

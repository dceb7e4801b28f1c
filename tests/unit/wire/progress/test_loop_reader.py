"""A loop that always listens looks for what comes before it sleeps, while that pays, and lets all else go first."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator

import pytest

from multiworld.testing import scaled
from multiworld.wire.progress import loop_reader
from multiworld.wire.progress.loop_reader import LoopReader
from multiworld.wire.progress.spinning import MAX_MISSES, MIN_STREAK


class Ear:
    """What a loop reads: it counts, and may answer."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.heard: list[bytes] = []
        self.failed: list[BaseException] = []

    def read_for_loop(self) -> None:
        self.heard.append(self.near.recv(4096))

    def on_failure(self, error: BaseException) -> None:
        self.failed.append(error)

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits count as short, and looks last, also where a machine is slow, or busy with something else."""
    monkeypatch.setattr(loop_reader, "LINGER_S", scaled(0.2))
    monkeypatch.setattr(loop_reader, "QUICK_S", scaled(1.0))


def reader_of(ear: Ear, *, lingers: bool = True) -> LoopReader:
    reader = LoopReader(asyncio.get_running_loop())
    reader._may_linger = True  # also where there is one processor
    reader.lingers = lingers
    reader.watch(ear.near.fileno(), ear)
    return reader


async def told_quickly(ear: Ear, times: int) -> None:
    """Let it hear so many messages, the next as soon as the one before was heard."""
    for _ in range(times):
        before = len(ear.heard)
        ear.far.send(b"x")
        while len(ear.heard) == before:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


class Looks:
    """Counts how often the reader's descriptors are looked at."""

    def __init__(self, reader: LoopReader) -> None:
        self._epoll, self.count = reader._epoll, 0
        reader._epoll = self  # type: ignore[assignment]

    def poll(self, timeout: float, max_ready: int) -> list[tuple[int, int]]:
        self.count += 1
        return self._epoll.poll(timeout, max_ready)

    def __getattr__(self, name: str) -> object:
        return getattr(self._epoll, name)


async def looks_after_one(reader: LoopReader, ear: Ear) -> int:
    """Send one message more; return how often the reader looks from then on."""
    looks = Looks(reader)
    ear.far.send(b"x")
    await asyncio.sleep(0.05)
    return looks.count


@pytest.mark.usefixtures("patient")
async def test_it_looks_on_once_messages_come_quickly(ear: Ear) -> None:
    reader = reader_of(ear)
    await told_quickly(ear, MIN_STREAK + 2)
    assert await looks_after_one(reader, ear) > 5
    assert not ear.failed
    reader.close()


@pytest.mark.usefixtures("patient")
async def test_it_reads_what_comes_while_it_looks_without_going_round_the_loop(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(ear)
    await told_quickly(ear, MIN_STREAK + 2)
    rounds: list[int] = []

    def send_another() -> None:
        if len(ear.heard) < 20:
            ear.far.send(b"x")

    monkeypatch.setattr(os, "sched_yield", send_another)
    ear.far.send(b"x")
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    select = selector.select

    def counted(timeout: float | None = None) -> object:
        rounds.append(1)
        return select(timeout)

    monkeypatch.setattr(selector, "select", counted)
    await asyncio.sleep(scaled(0.3))
    assert len(ear.heard) >= 20
    assert len(rounds) < 10
    reader.close()


async def test_it_does_not_look_where_nobody_always_listens(ear: Ear) -> None:
    reader = reader_of(ear, lingers=False)
    await told_quickly(ear, 3 * MIN_STREAK)
    assert await looks_after_one(reader, ear) == 1
    reader.close()


async def test_messages_that_come_rarely_are_not_looked_for(ear: Ear) -> None:
    reader = reader_of(ear)
    for _ in range(MIN_STREAK + 2):
        ear.far.send(b"x")
        await asyncio.sleep(0.01)
    assert await looks_after_one(reader, ear) == 1
    reader.close()


async def test_looking_in_vain_ends_it(ear: Ear) -> None:
    reader = reader_of(ear)
    await told_quickly(ear, MIN_STREAK + 2)
    for _ in range(MAX_MISSES + 2):
        ear.far.send(b"x")
        await asyncio.sleep(0.005)
    assert await looks_after_one(reader, ear) == 1
    reader.close()


@pytest.mark.usefixtures("patient")
async def test_what_a_thread_hands_to_the_loop_ends_the_look(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_reader, "LINGER_S", scaled(1.0))
    reader = reader_of(ear)
    await told_quickly(ear, MIN_STREAK + 2)
    loop = asyncio.get_running_loop()
    handed: list[float] = []
    looks = 0

    def hand_over_later() -> None:
        nonlocal looks
        looks += 1
        if looks == 100:
            loop.call_soon_threadsafe(lambda: handed.append(time.perf_counter()))
            handed.append(time.perf_counter())

    monkeypatch.setattr(os, "sched_yield", hand_over_later)
    ear.far.send(b"x")
    await asyncio.sleep(scaled(0.5))
    assert len(handed) == 2
    assert handed[1] - handed[0] < scaled(0.2)
    reader.close()


@pytest.fixture
def other() -> Iterator[Ear]:
    other = Ear()
    yield other
    other.close()


@pytest.mark.usefixtures("patient")
async def test_messages_without_end_keep_the_loop_from_nothing_else(
    ear: Ear, other: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(ear)
    await told_quickly(ear, MIN_STREAK + 2)
    monkeypatch.setattr(os, "sched_yield", lambda: ear.far.send(b"x"))
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[float] = loop.create_future()

    def hear() -> None:
        if not heard.done():
            heard.set_result(time.perf_counter())

    loop.add_reader(other.near.fileno(), hear)
    ear.far.send(b"x")
    began = time.perf_counter()
    await asyncio.sleep(0.02)
    assert time.perf_counter() - began < scaled(0.2), "a timer is not forgotten"
    while len(ear.heard) <= 20:
        await asyncio.sleep(0.001)
        assert time.perf_counter() - began < scaled(5.0), "it reads on meanwhile"
    other.far.send(b"x")
    began = time.perf_counter()
    assert await asyncio.wait_for(heard, 5) - began < scaled(0.2), "nor is another socket"
    monkeypatch.undo()
    loop.remove_reader(other.near.fileno())
    reader.close()


@pytest.mark.usefixtures("patient")
async def test_a_reader_that_is_closed_meanwhile_looks_no_more(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_reader, "LINGER_S", scaled(5.0))
    reader = reader_of(ear)
    await told_quickly(ear, MIN_STREAK + 2)
    monkeypatch.setattr(os, "sched_yield", reader._close)
    ear.far.send(b"x")
    await asyncio.wait_for(asyncio.sleep(0.01), scaled(2.0))
    assert reader._epoll.closed


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_reader, "usable_processors", lambda: 2.0)
    monkeypatch.delenv(loop_reader.VARIABLE, raising=False)
    assert loop_reader._may_linger()
    monkeypatch.setenv(loop_reader.VARIABLE, "0")
    assert not loop_reader._may_linger()
    monkeypatch.delenv(loop_reader.VARIABLE)
    monkeypatch.setattr(loop_reader, "usable_processors", lambda: 1.5)
    assert not loop_reader._may_linger()


@pytest.mark.usefixtures("patient")
async def test_it_looks_on_after_those_who_heard_of_what_came_while_it_looked(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(ear)
    await told_quickly(ear, MIN_STREAK + 2)
    before, loop, told = len(ear.heard), asyncio.get_running_loop(), list[int]()
    looked_after: list[int] = []

    def tell() -> None:
        Ear.read_for_loop(ear)
        loop.call_soon(told.append, len(ear.heard) - before)

    def look() -> None:
        looked_after.append(len(ear.heard) - before)
        if looked_after == [1]:
            ear.far.send(b"x")

    monkeypatch.setattr(ear, "read_for_loop", tell)
    monkeypatch.setattr(os, "sched_yield", look)
    ear.far.send(b"x")
    await asyncio.sleep(0.05)
    assert told == [1, 2]
    assert looked_after.count(2) > 1
    reader.close()

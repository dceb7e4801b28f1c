"""The progress thread looks after what a thread reads itself: more rarely while that leaves nothing lying."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from multiworld.wire.connection.watch import Watch
from multiworld.wire.progress.interest import Interest
from multiworld.wire.progress.loop_reader import MAX_PATROL_S, PATROL_S
from multiworld.wire.progress.thread import ProgressThread

pytestmark = pytest.mark.sources  # the parts here stand for compiled ones


class _Loop:
    def __init__(self) -> None:
        self.delays: list[float] = []
        self._call: Callable[[], None] | None = None

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delays.append(delay_s)
        self._call = call

    def run(self) -> None:
        assert self._call is not None
        self._call()


class _Interest:
    over = writing = False
    reading = 0

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def update(self) -> None: ...


class _Connection:
    def __init__(self) -> None:
        self.comes = False

    def is_awaited(self) -> bool:
        return True

    def read_available(self, fair_bytes: int = 0, /) -> None:
        if self.comes:
            self.watch.heard(0)

    watch: Watch


def guarded() -> tuple[Watch, _Loop, _Connection]:
    """Return a connection that a thread has just read, and will read again in a moment."""
    loop, connection = _Loop(), _Connection()
    watch = Watch(cast(Any, connection), cast(ProgressThread, loop), 0, cast(Interest, _Interest()))
    connection.watch = watch
    thread = threading.get_ident()
    assert watch._claim(thread)
    watch.heard(0)
    watch._end_reading(thread)
    return watch, loop, connection


def test_it_comes_more_rarely_while_it_finds_nothing() -> None:
    watch, loop, _ = guarded()
    for _ in range(4):
        watch.heard(0)  # by the thread, which has come again
        loop.run()
    assert loop.delays == [PATROL_S, 2 * PATROL_S, MAX_PATROL_S, MAX_PATROL_S, MAX_PATROL_S]


def test_it_comes_soon_again_after_it_has_found_something() -> None:
    watch, loop, connection = guarded()
    for _ in range(3):
        watch.heard(0)
        loop.run()
    connection.comes = True
    loop.run()
    assert loop.delays[-1] == PATROL_S


def test_it_leaves_the_connection_to_a_thread_that_reads() -> None:
    watch, loop, connection = guarded()
    thread = threading.get_ident()
    assert watch._claim(thread)
    connection.comes = True
    heard_at = watch._heard_at
    loop.run()
    assert watch._heard_at == heard_at
    assert loop.delays[-1] == 2 * PATROL_S

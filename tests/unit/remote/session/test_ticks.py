"""Commands that nobody waits for leave with the next tick; a master that issues nothing has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiworld.remote.session.command_stream import BATCH, FIRST_BATCH, MAX_IDLE_TICKS, MAX_TICK_S, QUIET, TICK_S

from ..fake_node import FakeNode


def test_commands_leave_with_the_next_tick(fake: FakeNode) -> None:
    fake.node.zeros(3)
    sent = fake.session.statistics.num_batches
    assert fake.session.stream.queue.waiting
    fake.run_timers()
    assert not fake.session.stream.queue.waiting
    assert fake.session.statistics.num_batches == sent + 1


def num_batches(fake: FakeNode, num_commands: int) -> int:
    """Return in how many batches so many commands leave without a tick."""
    before = fake.session.statistics.num_batches
    for _ in range(num_commands):
        fake.node.zeros(3)
    return fake.session.statistics.num_batches - before


def test_full_batches_leave_without_one(fake: FakeNode) -> None:
    assert num_batches(fake, 10 * BATCH) >= 10
    assert len(fake.session.stream.queue.waiting) < BATCH
    assert num_batches(fake, 10 * BATCH) == 10


def test_a_node_that_was_waited_for_gets_small_batches_first(fake: FakeNode) -> None:
    for _ in range(2):
        fake.node.zeros(3).fetch()
        assert num_batches(fake, FIRST_BATCH - 1) == 0
        assert num_batches(fake, 1) == 1
        assert num_batches(fake, 2 * FIRST_BATCH) == 1
        assert num_batches(fake, 4 * FIRST_BATCH) == 1


def test_ticks_end_when_nothing_is_issued_and_begin_again(fake: FakeNode) -> None:
    fake.node.zeros(3)
    for _ in range(1 + MAX_IDLE_TICKS // QUIET):
        assert len(fake.world.timers) == 1
        fake.run_timers()
    assert fake.world.timers == []
    fake.node.zeros(3)
    fake.run_timers()
    assert not fake.session.stream.queue.waiting


@pytest.fixture
def delays(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """After what time each tick was to come."""
    found = list[float]()
    later = fake.world.later

    def noted(after_s: float, call: Callable[[], object]) -> None:
        found.append(after_s)
        later(after_s, call)

    monkeypatch.setattr(fake.world, "later", noted)
    return found


def test_ticks_go_on_longer_while_others_send_all(fake: FakeNode, delays: list[float]) -> None:
    for _ in range(MAX_IDLE_TICKS):
        (fake.node.zeros(3) + 1).fetch()
        fake.run_timers()
    assert delays == [TICK_S, 2 * TICK_S] + (MAX_IDLE_TICKS - 2) * [MAX_TICK_S]
    assert fake.world.timers == []


def test_a_tick_that_finds_something_brings_the_next_one_soon(fake: FakeNode, delays: list[float]) -> None:
    x = fake.node.zeros(3)
    fake.run_timers()
    fake.run_timers()
    assert delays == [TICK_S, TICK_S, MAX_TICK_S]
    y = x + 1  # it leaves with the next one: to wake the thread would cost more
    fake.run_timers()
    assert not fake.session.stream.queue.waiting
    assert delays[3:] == [TICK_S]
    assert y.fetch().tolist() == [1.0] * 3

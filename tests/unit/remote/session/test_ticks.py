"""Commands that nobody waits for leave with the next tick; a master that issues nothing has none."""

from __future__ import annotations

from multiworld.remote.session.command_stream import BATCH, MAX_IDLE_TICKS

from ..fake_node import FakeNode


def test_commands_leave_with_the_next_tick(fake: FakeNode) -> None:
    fake.node.zeros(3)
    sent = fake.session.statistics.num_batches
    assert fake.session.stream.queue.waiting
    fake.run_timers()
    assert not fake.session.stream.queue.waiting
    assert fake.session.statistics.num_batches == sent + 1


def test_a_full_batch_leaves_without_one(fake: FakeNode) -> None:
    x = fake.node.zeros(3)
    for _ in range(BATCH):
        x = x + 1
    assert len(fake.session.stream.queue.waiting) < BATCH
    assert fake.session.statistics.num_batches == 1


def test_ticks_end_when_nothing_is_issued_and_begin_again(fake: FakeNode) -> None:
    fake.node.zeros(3)
    for _ in range(MAX_IDLE_TICKS + 1):
        assert len(fake.world.timers) == 1
        fake.run_timers()
    assert fake.world.timers == []
    fake.node.zeros(3)
    fake.run_timers()
    assert not fake.session.stream.queue.waiting

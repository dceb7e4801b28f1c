"""Collectives that wait for long ask; those that differ contradict; the others say nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from multiworld.channel.stream_channel import disagreement as asking
from multiworld.channel.stream_channel.disagreement import OpenCollectives
from multiworld.testing import wait_until
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread


class Recorder:
    """Stands for the mesh."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bytes]] = []
        self.contradicted: list[tuple[int, int, bytes]] = []

    def ask(self, seq: int, signature: bytes) -> None:
        self.asked.append((seq, signature))

    def contradict(self, rank: int, seq: int, signature: bytes) -> None:
        self.contradicted.append((rank, seq, signature))


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressThread]:
    monkeypatch.setattr(asking, "ASK_AFTER_S", 0.02)
    loop = ProgressThread("test-asking")
    yield loop
    loop.stop()


def test_what_waits_for_long_is_asked_about_and_what_is_over_is_not(loop: ProgressThread) -> None:
    recorder = Recorder()
    collectives = OpenCollectives(loop, recorder)
    quick, slow = Operation[None](), Operation[None]()
    collectives.begin(1, b"quick", quick)
    collectives.begin(2, b"slow", slow)
    quick.succeed(None)
    assert wait_until(lambda: len(recorder.asked) >= 2, 10)
    assert set(recorder.asked) == {(2, b"slow")}
    slow.succeed(None)
    assert wait_until(lambda: not collectives._ringing, 10), "the clock stops when nothing is under way"
    third = Operation[None]()
    collectives.begin(3, b"third", third)
    assert wait_until(lambda: (3, b"third") in recorder.asked, 10)
    third.succeed(None)


def test_only_what_differs_is_contradicted_whether_it_is_over_or_not(loop: ProgressThread) -> None:
    recorder = Recorder()
    collectives = OpenCollectives(loop, recorder)
    over, under_way = Operation[None](), Operation[None]()
    over.succeed(None)
    collectives.begin(1, b"one", over)
    collectives.begin(2, b"two", under_way)
    collectives.asked(5, 1, b"one")
    collectives.asked(5, 1, b"other")
    collectives.asked(6, 2, b"two")
    collectives.asked(6, 2, b"other")
    collectives.asked(7, 3, b"not here yet")
    assert recorder.contradicted == [(5, 1, b"one"), (6, 2, b"two")]
    under_way.succeed(None)


def test_only_the_last_collectives_are_remembered_and_those_under_way(loop: ProgressThread) -> None:
    recorder = Recorder()
    collectives = OpenCollectives(loop, recorder)
    for seq in range(1, 1001):
        operation: Operation[None] = Operation()
        operation.succeed(None)
        collectives.begin(seq, b"same", operation)
    collectives.asked(1, 1, b"other")
    collectives.asked(1, 1000, b"other")
    assert recorder.contradicted == [(1, 1000, b"same")]

"""Random programs on a node that is lost again and again: the same bits as beside it."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.remote.fuzz import run_program
from multiworld.remote.recovery import schedule
from multiworld.remote.recovery.node_recovery import NodeRecovery

from ..fake_node import FakeNode

PARTS, PROGRAMS = 4, 10


class Losses:
    """Takes snapshots and loses the node between the steps of a program, at random."""

    def __init__(self, fake: FakeNode, recovery: NodeRecovery, seed: int) -> None:
        self._fake, self._recovery, self._rng = fake, recovery, Random(seed)
        self._is_lost = False

    def __call__(self) -> None:
        drawn = self._rng.random()
        if self._is_lost:
            if drawn < 0.5:
                self.end()
        elif drawn < 0.1:
            self._recovery.take_snapshot()
        elif drawn < 0.25:
            self._fake.lose()
            self._is_lost = True

    def end(self) -> None:
        """The node is there again."""
        if self._is_lost:
            self._fake.replace()
            self._is_lost = False


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_on_nodes_that_are_lost_between_their_steps_give_the_same_bits(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "MAX_LOSSES", 1000)  # it is lost before it says what it executed
    num_losses = 0
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        with FakeNode() as fake:
            recovery = NodeRecovery(fake.session)
            recovery.take_snapshot()
            losses = Losses(fake, recovery, seed)
            monkeypatch.setattr(fake.session._life, "wait_back", losses.end)  # nothing else replaces it
            run_program(fake.node, seed, losses)
            losses.end()
            num_losses += recovery.statistics.num_recoveries
            recovery.close()
    assert num_losses > PROGRAMS

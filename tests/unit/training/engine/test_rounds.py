"""When members may come and go in semi-synchronous training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from multiworld.errors import WorldBrokenError, WorldClosedError
from multiworld.training.engine.shares import Shares
from multiworld.training.engine.step import Step
from multiworld.training.recovery.records import Generation, Member
from multiworld.training.state import TrainingState
from multiworld.training.sync import rounds
from multiworld.training.sync.outer import make_outer_step
from multiworld.training.sync.rounds import Rounds
from multiworld.training.sync.strategies import LocalSGD

from .fake_member import FakeMember, Runner, Silent
from .test_transfers import Arriving, at_step

TOTAL = 4


class Training:
    """Member a trains alone, in rounds of two steps."""

    def __init__(self) -> None:
        self.member, self.observer, self.state = FakeMember(alone=True), Silent(), TrainingState()
        self.team = self.member.team
        self.parts = self.member.parts(self.state, self.observer)
        model = torch.nn.Module()
        model.weight = self.member.weight
        strategy = LocalSGD(every=2)
        self.sync = Rounds(self.parts, self.member.computing, Shares(4), strategy, make_outer_step(strategy, [model]))
        self.sync.attach(self.advance)
        self.sync.begin_training(TOTAL)

    def advance(
        self, error: WorldBrokenError | WorldClosedError | None, *, as_newcomer: bool = False
    ) -> Generation | None:
        raise AssertionError(f"nobody was lost: {error}")

    def begin(self, **more: Any) -> None:
        self.team.generation = replace(self.team.generation, **more)
        self.sync.begin_generation(self.team.generation)

    def do(self) -> None:
        step = self.parts.standing.step = Step(Runner(self.sync), self.state.step, 0, 0)
        with step:
            for batch in step:
                self.member.backward(batch)


def test_members_come_and_go_after_each_round_but_the_last() -> None:
    training = Training()
    training.begin(is_restart=True, sources=("a",))
    may_change = []
    for _ in range(TOTAL):
        training.do()
        may_change.append(training.sync.between_steps())
    assert training.state.step == TOTAL
    assert may_change == [False, True, False, False]


def test_who_waits_for_the_state_in_the_last_round_meets_nobody_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others end then: they would wait for it at the end, and it for them between two rounds."""
    monkeypatch.setattr(rounds, "Receiving", lambda world, sources: Arriving(at_step(TOTAL)))
    may_change = []
    for number in range(2):
        training = Training()
        members = (*training.team.generation.members, Member(id="b", rank=1, host="h"))
        training.begin(step=number, members=members, stateless=("a",), sources=("b",))
        assert list(training.sync.catch_up()) == []
        may_change.append(training.sync.between_steps())
    assert may_change == [True, False]

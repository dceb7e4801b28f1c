"""Replicas that compute their steps alone, under the launcher: one is killed, and comes back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn

from multiworld.testing import scaled
from multiworld.training.sync.outer import OuterStep, make_outer_step

from .training_lives import Life, train
from .training_sync_program import INNER_LR, NUM_MICRO_BATCHES, STRATEGIES, loss_of, make_model, rows

TOTAL, KILLED_RANK = 150, 1

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]


class Member:
    """A member in this process, which does what the life of a real one says."""

    def __init__(self, strategy: str, life: Life) -> None:
        self.life = life
        self.model: nn.Module = make_model()
        self.outer: OuterStep = make_outer_step(STRATEGIES[strategy], [self.model])
        self.has_begun = False

    def begin(self, state: dict[str, object], model: dict[str, torch.Tensor]) -> None:
        """Take what all have in common."""
        self.model.load_state_dict(copy.deepcopy(model))
        self.outer.load_state_dict(copy.deepcopy(state))
        self.outer.return_to_anchor()
        self.has_begun = True

    def compute(self, step: int) -> None:
        share = self.life.shares[step]
        loss = torch.stack([loss_of(self.model, rows(step, number)) for number in share]).mean()
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.sub_(INNER_LR * gradient)


def train_again(strategy: str, lives: list[Life]) -> torch.Tensor:
    """Do in this process what the lives say, and return the model at the end, flat."""
    table = STRATEGIES[strategy].timetable(TOTAL)
    members = [Member(strategy, life) for life in lives]
    sent: dict[int, torch.Tensor] = {}
    for number in range(table.round_of(TOTAL)):
        steps = table.steps_of(number)
        members_of_round = [each for each in members if each.life.shares.get(steps[-1])]
        for member in members_of_round:
            if not member.has_begun:
                first = next((each for each in members if each.has_begun and each in members_of_round), member)
                member.begin(first.outer.state_dict(), first.model.state_dict())
        for step in steps:
            for member in members_of_round:
                member.compute(step)
            for fragment in table.due(step).send:
                sent[fragment] = torch.stack([each.outer.payload(fragment) for each in members_of_round]).mean(0)
            for fragment in table.due(step).apply:
                mean = sent.pop(fragment)
                for member in members_of_round:
                    member.outer.apply(fragment, mean, is_last=table.due(step).is_last)
    return torch.cat([parameter.detach().flatten() for parameter in members_of_round[0].model.parameters()])


Moment = Literal["inner", "outer"]
KILL_AT: dict[Moment, int] = {"inner": 28, "outer": 31}  # a round of "streaming" has the steps 28 to 31


def check_rounds(strategy: str, lives: list[Life], killed_at: int) -> None:
    """The share of the killed one is lost to the end of its round, and nothing else is, nor is done twice."""
    table = STRATEGIES[strategy].timetable(TOTAL)
    for number in range(table.round_of(TOTAL)):
        if number == table.round_of(killed_at):
            continue
        for step in table.steps_of(number):
            did = [number for life in lives for number in life.shares.get(step, [])]
            assert sorted(did) == list(range(NUM_MICRO_BATCHES)), f"step {step}"


def check_end(strategy: str, lives: list[Life], ended_with: list[Life]) -> None:
    """All have the model that the same lives give in one process."""
    expected = train_again(strategy, lives)
    for life in ended_with:
        assert life.final == ended_with[0].final
        assert life.scheduler == TOTAL
        torch.testing.assert_close(torch.tensor(life.final, dtype=torch.float64), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "moment"),
    [("streaming", "inner"), ("streaming", "outer"), ("four", "outer")],  # the others are simpler cases of these
)
def test_a_death_costs_that_replicas_round_and_the_others_nothing(
    tmp_path: Path, strategy: str, moment: Moment
) -> None:
    kill_at = KILL_AT[moment]
    lives = train(
        tmp_path, strategy, num_processes=3, total=TOTAL, killed_rank=KILLED_RANK, kill_at=kill_at, moment=moment
    )
    killed, replacement = (life for life in lives if life.rank == KILLED_RANK)
    survivors = [life for life in lives if life.rank != KILLED_RANK]
    table = STRATEGIES[strategy].timetable(TOTAL)

    for survivor in survivors:
        assert sorted(survivor.shares) == list(range(TOTAL))  # each step once: nothing was done again
        assert all(survivor.shares.values())
    assert list(killed.shares) == list(range(kill_at))
    first = next(step for step, share in replacement.shares.items() if share)
    assert first == table.start_of(table.round_of(first)) > kill_at
    check_rounds(strategy, lives, kill_at)
    ended_with = [life for life in lives if life.final is not None]
    assert len(ended_with) == 3
    check_end(strategy, lives, ended_with)


@pytest.mark.parametrize("moment", ["inner", "outer"])
def test_a_replica_of_two_processes_that_loses_one_costs_the_other_replica_nothing(
    tmp_path: Path, moment: Moment
) -> None:
    kill_at = KILL_AT[moment]
    lives = train(
        tmp_path, "streaming-fsdp", num_processes=4, total=TOTAL, killed_rank=3, kill_at=kill_at, moment=moment
    )
    by_rank = {rank: [life for life in lives if life.rank == rank] for rank in range(4)}
    assert [len(by_rank[rank]) for rank in range(4)] == [1, 1, 2, 2]  # both processes of the replica are new ones
    for rank in (0, 1):
        assert sorted(by_rank[rank][0].shares) == list(range(TOTAL))
    for rank in (0, 2):  # its processes compute each micro-batch together
        assert [each.shares for each in by_rank[rank]] == [each.shares for each in by_rank[rank + 1]]
    assert list(by_rank[2][0].shares) == list(range(kill_at))
    assert by_rank[2][1].shares[TOTAL - 1]

    replicas = [life for life in lives if life.rank % 2 == 0]
    check_rounds("streaming", replicas, kill_at)
    ended_with = [life for life in lives if life.final is not None]
    assert len(ended_with) == 4
    check_end("streaming", replicas, ended_with)

"""Who computes which micro-batches in a step, from whom inputs come, and to whom outputs go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment, SharedOrder
from multiworld.training.pipeline.work import Arrivals, StepWork, Task, Work
from multiworld.training.planning.operations import Kind
from multiworld.training.planning.plan import LOST, Reroute
from multiworld.training.planning.template import Schedule

TWO = Assignment(
    num_layers=6,
    pipelines=(
        AssignedPipeline(members=("a", "b"), starts=(0, 3), num_micro_batches=5, max_in_flight=(2, 1)),
        AssignedPipeline(members=("c", "d", "e"), starts=(0, 2, 5), num_micro_batches=3, max_in_flight=(3, 2, 1)),
    ),
)
REROUTED = Assignment(
    num_layers=4,
    pipelines=(
        AssignedPipeline(members=("a", LOST), starts=(0, 2), num_micro_batches=1, max_in_flight=(2, 1)),
        AssignedPipeline(members=("c", "d"), starts=(0, 2), num_micro_batches=2, max_in_flight=(2, 2)),
    ),
    reroutes=(Reroute(pipeline=0, node=1, peers=(1,)),),
    orders=(
        SharedOrder(pipeline=0, stage=0, operations=(0, ~0)),
        SharedOrder(pipeline=1, stage=0, operations=(1, 2, ~1, ~2)),
        SharedOrder(pipeline=1, stage=1, operations=(1, ~1, 0, 2, ~2, ~0)),
    ),
)
F, B = Kind.FORWARD, Kind.BACKWARD


def test_a_stage_in_the_middle_has_its_pipelines_micro_batches_and_two_neighbours() -> None:
    work = StepWork(TWO).of("d")
    assert work.micro_batches == StepWork(TWO).micro_batches_of("d") == (5, 6, 7)
    assert work.tasks == (
        Task(F, 5, "c", "e"),
        Task(F, 6, "c", "e"),
        Task(B, 5, "e", "c"),
        Task(F, 7, "c", "e"),
        Task(B, 6, "e", "c"),
        Task(B, 7, "e", "c"),
    )
    assert work.arrivals == (Arrivals(F, "c", (5, 6, 7)), Arrivals(B, "e", (5, 6, 7)))


def test_the_ends_of_a_pipeline_have_one_neighbour() -> None:
    assert StepWork(TWO).of("a").tasks[0] == Task(F, 0, "", "b")
    assert StepWork(TWO).of("b").tasks[:2] == (Task(F, 0, "a", ""), Task(B, 0, "", "a"))


def test_one_without_layers_has_no_work() -> None:
    assert StepWork(TWO).of("x") == Work(tasks=(), arrivals=())
    assert StepWork(TWO).micro_batches_of("x") == ()


def test_a_peer_of_a_lost_member_also_has_that_pipelines_micro_batches() -> None:
    step = StepWork(REROUTED)
    assert [step.micro_batches_of(member) for member in "acd"] == [(0,), (1, 2), (0, 1, 2)]
    assert step.of("a").tasks == (Task(F, 0, "", "d"), Task(B, 0, "d", ""))
    assert step.of("d").tasks == (
        Task(F, 1, "c", ""),
        Task(B, 1, "", "c"),
        Task(F, 0, "a", ""),
        Task(F, 2, "c", ""),
        Task(B, 2, "", "c"),
        Task(B, 0, "", "a"),
    )
    assert step.of("d").arrivals == (Arrivals(F, "c", (1, 2)), Arrivals(F, "a", (0,)))
    assert step.of("c").arrivals == (Arrivals(B, "d", (1, 2)),)


def test_members_of_a_pipeline_with_a_gap_hold_all_layers_with_a_peer() -> None:
    assert StepWork(REROUTED).members_of(0) == ("a", "d")
    assert StepWork(REROUTED).members_of(1) == ("c", "d")


def test_a_step_may_have_fewer_micro_batches_dealt_otherwise() -> None:
    assert StepWork(TWO, [(2, 6), ()]).of("b").micro_batches == (2, 6)
    assert StepWork(TWO, [(2, 6), ()]).of("e") == Work(tasks=(), arrivals=())
    step = StepWork(REROUTED, [(2,), (0,)])
    assert [step.micro_batches_of(member) for member in "acd"] == [(2,), (0,), (0, 2)]
    assert step.of("d").tasks == (Task(F, 0, "c", ""), Task(B, 0, "", "c"), Task(F, 2, "a", ""), Task(B, 2, "", "a"))


def test_pipelines_that_share_work_cannot_have_more_than_in_every_step() -> None:
    with pytest.raises(ValueError, match="pipeline 0 has 2 micro-batches: expected at most 1"):
        StepWork(REROUTED, [(0, 1), ()])


W = Kind.WEIGHT
SPLIT = Assignment(
    num_layers=4,
    pipelines=(
        AssignedPipeline(
            members=("a", "b"),
            starts=(0, 2),
            num_micro_batches=2,
            max_in_flight=(2, 2),
            schedule=Schedule.ZERO_BUBBLE,
        ),
    ),
)


def test_a_split_backward_sends_what_it_has_before_the_gradients_of_weights() -> None:
    work = StepWork(SPLIT).of("b")
    assert work.tasks == (
        Task(F, 0, "a", ""),
        Task(B, 0, "", "a"),
        Task(F, 1, "a", ""),
        Task(B, 1, "", "a"),
        Task(W, 0, "", ""),
        Task(W, 1, "", ""),
    )
    assert work.split == {0, 1}
    assert StepWork(TWO).of("a").split == frozenset()
    assert StepWork(SPLIT).of("a").arrivals == (Arrivals(B, "b", (0, 1)),)


def test_a_backward_that_is_there_twice_in_an_order_is_split() -> None:
    order = SharedOrder(pipeline=1, stage=1, operations=(1, ~1, 0, ~1, 2, ~2, ~0, ~0))
    work = StepWork(replace(REROUTED, orders=(*REROUTED.orders[:2], order))).of("d")
    assert [(each.kind, each.micro_batch) for each in work.tasks] == [
        *((F, 1), (B, 1), (F, 0), (W, 1)),
        *((F, 2), (B, 2), (B, 0), (W, 0)),
    ]
    assert work.split == {0, 1}

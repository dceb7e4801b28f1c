"""What others see of an assignment: ranks, and how busy stages are predicted to be."""

from __future__ import annotations

import pytest

from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment
from multiworld.training.pipeline.planner import Planner
from multiworld.training.pipeline.seen import pipelines_seen, with_busy
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.plan import LOST, Reroute
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import make_templates
from multiworld.training.recovery.records import Generation, Member
from multiworld.world.launcher.pipelines import LOST_RANK

A, B, C = (Member(id=name, rank=10 + number, host="h") for number, name in enumerate("abc"))


def test_pipelines_are_told_by_the_ranks_of_their_members() -> None:
    one = AssignedPipeline(members=("c", "a"), starts=(0, 3), num_micro_batches=5, max_in_flight=(2, 1))
    generation = Generation(number=1, members=(A, B, C), assignment=Assignment(num_layers=6, pipelines=(one,)))
    (seen,) = pipelines_seen(generation)

    assert (seen.ranks, seen.starts, seen.num_micro_batches, seen.busy) == ((12, 10), (0, 3), 5, ())
    assert pipelines_seen(Generation(number=1, members=(A,))) == ()


def test_who_computes_for_a_lost_member_is_told_with_all_micro_batches() -> None:
    pipelines = (
        AssignedPipeline(members=("a", LOST), starts=(0, 3), num_micro_batches=2, max_in_flight=(2, 1)),
        AssignedPipeline(members=("b", "c"), starts=(0, 3), num_micro_batches=3, max_in_flight=(2, 1)),
    )
    layers = tuple(LayerCost(name=str(each), forward_s=0.1, backward_s=0.2, state_bytes=1) for each in range(6))
    assignment = Assignment(
        num_layers=6,
        pipelines=pipelines,
        reroutes=(Reroute(pipeline=0, node=1, peers=(1, 1)),),
        iteration_s=6.0,
    )
    assignment = with_busy(assignment, Profile(model="m", micro_batch=1, layers=layers))
    broken, whole = pipelines_seen(Generation(number=1, members=(A, B, C), assignment=assignment))

    assert (broken.ranks, broken.num_micro_batches, broken.computed) == ((10, LOST_RANK), 2, (2, 0))
    assert (whole.ranks, whole.num_micro_batches, whole.computed) == ((11, 12), 3, (3, 5))
    assert (broken.busy, whole.busy) == ((0.3, 0.0), (0.45, 0.75))


def test_the_busiest_stage_of_the_slowest_pipeline_waits_least() -> None:
    layers = tuple(LayerCost(name=str(each), forward_s=0.1, backward_s=0.2, state_bytes=1) for each in range(6))
    templates = make_templates(Profile(model="m", micro_batch=1, layers=layers), Node(memory_bytes=6), num_nodes=3)
    planner = Planner(templates, tolerate=0, num_micro_batches=4)
    members, layers_of = (A, B, C), {each.id: tuple(range(6)) for each in (A, B, C)}
    generation = planner.complete(Generation(number=1, members=members, layers=layers_of), None)
    assert generation.assignment is not None
    slowest = max(each.num_micro_batches for each in generation.assignment.pipelines)

    for pipeline in generation.assignment.pipelines:  # each of one node, which computes all the time, or waits at last
        assert list(pipeline.busy) == pytest.approx([pipeline.num_micro_batches / slowest], abs=1e-3)

"""What others see of an assignment: pipelines by the launcher's ranks, and how busy their stages will be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...world.launcher.pipelines import LOST_RANK, PipelineRanks
from ..planning.plan import LOST
from ..planning.profile import Profile
from ..recovery.records import Generation
from .assignment import AssignedPipeline, Assignment
from .work import StepWork


def pipelines_seen(generation: Generation) -> tuple[PipelineRanks, ...]:
    """Return the pipelines of a generation; none if it has no assignment."""
    if generation.assignment is None:
        return ()
    assignment = generation.assignment
    rank_of = {each.id: each.rank for each in generation.members} | {LOST: LOST_RANK}
    counts = _counts(assignment)
    return tuple(
        PipelineRanks(
            ranks=tuple(rank_of[member] for member in each.members),
            starts=each.starts,
            num_micro_batches=each.num_micro_batches,
            busy=each.busy,
            computed=tuple(counts[member] for member in each.members) if assignment.reroutes else (),
        )
        for each in assignment.pipelines
    )


def _counts(assignment: Assignment) -> dict[str, int]:
    """Return how many micro-batches of a step each member computes."""
    work = StepWork(assignment)
    return {member: len(work.micro_batches_of(member)) for member in (*assignment.members, LOST)}


def with_busy(assignment: Assignment, profile: Profile) -> Assignment:
    """Return the assignment with the part of a step in which each stage computes, if it says what a step takes."""
    if not assignment.iteration_s:
        return assignment
    counts = _counts(assignment)
    pipelines = (
        replace(each, busy=_busy(each, counts, profile, assignment.iteration_s)) for each in assignment.pipelines
    )
    return replace(assignment, pipelines=tuple(pipelines))


def _busy(pipeline: AssignedPipeline, counts: Mapping[str, int], profile: Profile, step_s: float) -> tuple[float, ...]:
    ends = (*pipeline.starts[1:], profile.num_layers)
    works_s = [
        counts[member]
        * sum(each.work_s + (each.forward_s if pipeline.recompute else 0.0) for each in profile.layers[first:end])
        for member, first, end in zip(pipeline.members, pipeline.starts, ends, strict=True)
    ]
    return tuple(round(min(1.0, work_s / step_s), 3) for work_s in works_s)

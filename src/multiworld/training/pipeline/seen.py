"""What others see of an assignment: pipelines by the launcher's ranks, and how busy their stages will be. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...world.launcher.pipelines import PipelineRanks
from ..planning.profile import Profile
from ..recovery.records import Generation
from .assignment import AssignedPipeline, Assignment


def pipelines_seen(generation: Generation) -> tuple[PipelineRanks, ...]:
    """Return the pipelines of a generation; none if it has no assignment."""
    if generation.assignment is None:
        return ()
    rank_of = {each.id: each.rank for each in generation.members}
    return tuple(
        PipelineRanks(
            ranks=tuple(rank_of[member] for member in each.members),
            starts=each.starts,
            num_micro_batches=each.num_micro_batches,
            busy=each.busy,
        )
        for each in generation.assignment.pipelines
    )


def with_busy(assignment: Assignment, profile: Profile) -> Assignment:
    """Return the assignment with the part of a step in which each stage computes, if it says what a step takes."""
    if not assignment.iteration_s:
        return assignment
    pipelines = (replace(each, busy=_busy(each, profile, assignment.iteration_s)) for each in assignment.pipelines)
    return replace(assignment, pipelines=tuple(pipelines))


def _busy(pipeline: AssignedPipeline, profile: Profile, step_s: float) -> tuple[float, ...]:
    ends = (*pipeline.starts[1:], profile.num_layers)
    works_s = [
        sum(each.work_s + (each.forward_s if pipeline.recompute else 0.0) for each in profile.layers[first:end])
        for first, end in zip(pipeline.starts, ends, strict=True)
    ]
    return tuple(round(min(1.0, pipeline.num_micro_batches * work_s / step_s), 3) for work_s in works_s)

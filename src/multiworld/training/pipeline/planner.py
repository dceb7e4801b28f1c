"""Give a generation its assignment: which pipelines its members form, and what has to be moved for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..planning.templates import Templates
from ..recovery.records import Generation
from .assignment import AssignedPipeline, Assignment, LayerMove


class Planner:
    """Proposes pipelines of nearly equal numbers of members, each with its share of the micro-batches."""

    def __init__(self, templates: Templates, *, tolerate: int, num_micro_batches: int) -> None:
        self._templates, self._tolerate, self._num_micro_batches = templates, tolerate, num_micro_batches

    def complete(self, generation: Generation, before: Generation | None) -> Generation:
        """Return the generation with its assignment. ``before``: the one that it follows."""
        num, least = len(generation.members), self._templates.smallest
        count = max(1, min(num // least, self._num_micro_batches))
        sizes = [num // count + (each < num % count) for each in range(count)]
        pipelines, begin = [], 0
        ids = [each.id for each in generation.members]
        for number, size in enumerate(sizes):
            template = self._templates.template(size)
            pipelines.append(
                AssignedPipeline(
                    members=tuple(ids[begin : begin + size]),
                    starts=tuple(each.first for each in template.stages),
                    num_micro_batches=self._num_micro_batches // count + (number < self._num_micro_batches % count),
                    max_in_flight=template.max_in_flight,
                )
            )
            begin += size
        assignment = Assignment(num_layers=self._templates.profile.num_layers, pipelines=tuple(pipelines))
        return replace(generation, assignment=replace(assignment, moves=_moves(assignment, generation.layers)))


def _moves(assignment: Assignment, held: Mapping[str, tuple[int, ...]]) -> tuple[LayerMove, ...]:
    moves = []
    for pipeline in assignment.pipelines:
        for member in pipeline.members:
            for layer in assignment.layers_of(member):
                if layer not in held.get(member, ()):
                    source = next(each for each, layers in held.items() if layer in layers)
                    moves.append(LayerMove(first=layer, end=layer + 1, source=source, destination=member))
    return tuple(moves)

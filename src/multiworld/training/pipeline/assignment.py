"""Who holds which layers in a generation, who computes which micro-batches, and what has to be moved for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..planning.template import Schedule


@dataclass(frozen=True, kw_only=True)
class AssignedPipeline:
    """``members``: ids, in the order of the stages. Stage ``i`` has the layers ``starts[i]`` to ``starts[i + 1] - 1``.

    ``num_micro_batches``: of each step. ``max_in_flight``: for each stage, how many micro-batches may be between their
    forward and their backward. ``busy``: for each stage, the part of a step in which it computes, as predicted; empty:
    nothing is predicted.
    """

    members: tuple[str, ...]
    starts: tuple[int, ...]
    num_micro_batches: int
    max_in_flight: tuple[int, ...]
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: bool = False
    busy: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerMove:
    """``destination`` gets the layers ``first`` to ``end - 1`` from ``source``."""

    first: int
    end: int
    source: str
    destination: str


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Of one generation: part of its record, so all members follow the same one.

    ``moves``: before the generation's first step. ``policy``: how it follows from the one before. ``iteration_s``: of a
    step, as predicted. ``tolerates``: any so many members may be lost while each layer is left somewhere. ``idle``:
    members that have nothing to do.
    """

    num_layers: int
    pipelines: tuple[AssignedPipeline, ...]
    moves: tuple[LayerMove, ...] = ()
    policy: str = ""
    iteration_s: float = 0.0
    tolerates: int = 0
    idle: tuple[str, ...] = ()

    def role_of(self, member: str) -> Role | None:
        """Return None for a member that has nothing to do."""
        begin = 0
        for number, each in enumerate(self.pipelines):
            if member in each.members:
                stage = each.members.index(member)
                return Role(
                    pipeline=number,
                    stage=stage,
                    num_stages=len(each.members),
                    first=each.starts[stage],
                    end=_end_of(each, stage, self.num_layers),
                    previous=each.members[stage - 1] if stage else "",
                    next=each.members[stage + 1] if stage + 1 < len(each.members) else "",
                    micro_batches=tuple(range(begin, begin + each.num_micro_batches)),
                    max_in_flight=each.max_in_flight[stage],
                    schedule=each.schedule,
                    recompute=each.recompute,
                )
            begin += each.num_micro_batches
        return None

    def layers_of(self, member: str) -> tuple[int, ...]:
        role = self.role_of(member)
        return () if role is None else role.layers

    def micro_batches_of(self, member: str) -> tuple[int, ...]:
        role = self.role_of(member)
        return () if role is None else role.micro_batches

    def owners(self, layer: int) -> tuple[str, ...]:
        """Return who holds this layer, one of each pipeline, in the order of the pipelines."""
        return tuple(
            member
            for each in self.pipelines
            for stage, member in enumerate(each.members)
            if each.starts[stage] <= layer < _end_of(each, stage, self.num_layers)
        )

    def owners_of_all(self, layers: Sequence[int]) -> tuple[str, ...]:
        """Return who holds any of these layers: those that keep a parameter equal which all of these layers have."""
        return tuple(dict.fromkeys(member for layer in layers for member in self.owners(layer)))


def without_last_owners(assignment: Assignment, leaving: Sequence[str]) -> list[str]:
    """Return those that may leave now: who is the last to hold a layer stays until somebody else has it."""
    going: list[str] = []
    for member in leaving:
        if all(set(assignment.owners(layer)) - {*going, member} for layer in assignment.layers_of(member)):
            going.append(member)
    return going


@dataclass(frozen=True, kw_only=True)
class Role:
    """What one member does: stage ``stage`` of its pipeline, with the layers ``first`` to ``end - 1``.

    ``previous``, ``next``: the members before and behind it, empty at the ends. ``micro_batches``: of each step.
    """

    pipeline: int
    stage: int
    num_stages: int
    first: int
    end: int
    previous: str
    next: str
    micro_batches: tuple[int, ...]
    max_in_flight: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: bool = False

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(range(self.first, self.end))

    @property
    def read(self) -> tuple[int, ...]:
        """The micro-batches whose data this member needs: the first stage has inputs, the last one targets."""
        return self.micro_batches if not self.previous or not self.next else ()


def _end_of(pipeline: AssignedPipeline, stage: int, num_layers: int) -> int:
    return pipeline.starts[stage + 1] if stage + 1 < len(pipeline.starts) else num_layers

"""Who holds which layers in a generation, who computes which micro-batches, and what has to be moved for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..planning.plan import LOST, Reroute
from ..planning.template import Schedule


@dataclass(frozen=True, kw_only=True)
class AssignedPipeline:
    """``members``: ids, in the order of the stages. Stage ``i`` has the layers ``starts[i]`` to ``starts[i + 1] - 1``.
    LOST stands where a member was lost and others compute its part (``Assignment.reroutes``).

    ``num_micro_batches``: of each step. ``max_in_flight``: for each stage, how many micro-batches may be between their
    forward and the end of their backward. ``busy``: for each stage, the part of a step in which it computes, as
    predicted; empty: nothing is predicted.
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
class SharedOrder:
    """In which order one member computes whose pipeline shares work with others: ``stage`` of ``pipeline``.

    ``operations``: ``n`` is the forward of the step's micro-batch ``n``, ``~n`` (below 0) its backward. Where ``~n`` is
    there twice, the backward is split: the second one makes the gradients of weights.
    """

    pipeline: int
    stage: int
    operations: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Of one generation: part of its record, so all members follow the same one.

    ``moves``: before the generation's first step. ``policy``: how it follows from the one before. ``iteration_s``: of a
    step, as predicted. ``tolerates``: any so many members may be lost while each layer is left somewhere. ``needed``:
    if that is less than the job asked for, how many members that needs; else 0. ``idle``:
    members that have nothing to do. ``reroutes``: who computes where a member is LOST; a node is a stage. ``orders``:
    of each member of the pipelines that compute for each other, as the proposer has simulated them.
    """

    num_layers: int
    pipelines: tuple[AssignedPipeline, ...]
    moves: tuple[LayerMove, ...] = ()
    policy: str = ""
    iteration_s: float = 0.0
    tolerates: int = 0
    needed: int = 0
    idle: tuple[str, ...] = ()
    reroutes: tuple[Reroute, ...] = ()
    orders: tuple[SharedOrder, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Those that have something to do."""
        return tuple(member for each in self.pipelines for member in each.members if member != LOST)

    def role_of(self, member: str) -> Role | None:
        """Return None for a member that has nothing to do."""
        for number, each in enumerate(self.pipelines):
            if member != LOST and member in each.members:
                stage = each.members.index(member)
                return Role(
                    pipeline=number,
                    stage=stage,
                    num_stages=len(each.members),
                    first=each.starts[stage],
                    end=_end_of(each, stage, self.num_layers),
                    recompute=each.recompute,
                )
        return None

    def layers_of(self, member: str) -> tuple[int, ...]:
        role = self.role_of(member)
        return () if role is None else role.layers

    def owners(self, layer: int) -> tuple[str, ...]:
        """Return who holds this layer, at most one of each pipeline, in the order of the pipelines."""
        return tuple(
            member
            for each in self.pipelines
            for stage, member in enumerate(each.members)
            if member != LOST and each.starts[stage] <= layer < _end_of(each, stage, self.num_layers)
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
    """What one member has: stage ``stage`` of its pipeline, with the layers ``first`` to ``end - 1``.

    ``work.StepWork`` says what it computes.
    """

    pipeline: int
    stage: int
    num_stages: int
    first: int
    end: int
    recompute: bool = False

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(range(self.first, self.end))

    @property
    def reads(self) -> bool:
        """Whether it needs the data of its micro-batches: the first stage has inputs, the last one targets."""
        return self.stage in (0, self.num_stages - 1)


def _end_of(pipeline: AssignedPipeline, stage: int, num_layers: int) -> int:
    return pipeline.starts[stage + 1] if stage + 1 < len(pipeline.starts) else num_layers

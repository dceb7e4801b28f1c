"""A plan: which member runs which stage of which pipeline, and how many micro-batches each pipeline has in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .template import Template

LOST = ""
"""Stands in the place of a lost member whose work others do (``Reroute``)."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """An instance of a template: ``members[i]`` is node ``i`` of it, or LOST. ``num_micro_batches``: of each step."""

    template: Template
    members: tuple[str, ...]
    num_micro_batches: int

    def __post_init__(self) -> None:
        if len(self.members) != self.template.num_nodes:
            raise ValueError(f"a template of {self.template.num_nodes} nodes cannot have {len(self.members)} members")

    def layers_of(self, member: str) -> tuple[int, ...]:
        """Return the layers that this member holds, in order."""
        node = self.members.index(member)
        return tuple(
            layer for each in self.template.stages if each.node == node for layer in range(each.first, each.end)
        )


@dataclass(frozen=True, kw_only=True)
class Move:
    """``destination`` has to get ``size_bytes`` of ``layer`` from ``source``, from ``offset_bytes`` on.

    ``layer_bytes``: of the whole layer, which other moves complete if this is a part.
    """

    layer: int
    source: str
    destination: str
    size_bytes: int
    layer_bytes: int
    offset_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.layer_bytes


@dataclass(frozen=True, kw_only=True)
class Reroute:
    """Who computes what a lost node would compute: the same node of other pipelines of the same template.

    ``pipeline``: the index of the one that lost its node ``node``. ``peers[i]``: the index of the pipeline whose node
    ``node`` computes the pipeline's micro-batch ``i`` there. All other stages of it stay with the pipeline (ReCycle,
    Gandhi et al. 2024).
    """

    pipeline: int
    node: int
    peers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Of one generation. ``iteration_s``: what a step takes as predicted: the slowest pipeline's time.

    ``tolerates``: any so many members may be lost while each layer is left somewhere. ``idle``: members that have no
    part in a pipeline, mostly none.
    """

    pipelines: tuple[Pipeline, ...]
    iteration_s: float
    tolerates: int = 0
    reroutes: tuple[Reroute, ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Those of all pipelines."""
        return tuple(member for each in self.pipelines for member in each.members if member != LOST)

    def pipeline_of(self, member: str) -> int:
        """Return the index of this member's pipeline. Raises KeyError for one that the plan does not have."""
        for index, each in enumerate(self.pipelines):
            if member != LOST and member in each.members:
                return index
        raise KeyError(member)

    def owners(self, layer: int) -> tuple[str, ...]:
        """Return the members that hold this layer, at most one of each pipeline."""
        return tuple(
            each.members[stage.node]
            for each in self.pipelines
            for stage in each.template.stages
            if stage.first <= layer < stage.end and each.members[stage.node] != LOST
        )

    def holdings(self) -> Mapping[str, frozenset[int]]:
        """Return the layers of each member."""
        return {
            member: frozenset(each.layers_of(member))
            for each in self.pipelines
            for member in each.members
            if member != LOST
        }


def is_recoverable(holdings: Mapping[str, frozenset[int]], alive: Sequence[str], num_layers: int) -> bool:
    """Return whether every layer is held by a member that is alive."""
    held: set[int] = set()
    for member in alive:
        held |= holdings.get(member, frozenset())
    return len(held) == num_layers

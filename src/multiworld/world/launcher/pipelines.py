"""Pipelines of a training, as its members and the launcher speak of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_SIZES = 4  # that are told one by one
LOST_RANK = -1
"""Stands where a process was lost and others compute its part."""


@dataclass(frozen=True, kw_only=True)
class PipelineRanks:
    """One pipeline. ``ranks``: those of its stages, in order, or LOST_RANK; stage ``i`` has the layers from
    ``starts[i]`` on.

    ``num_micro_batches``: of each step. ``busy``: the part of a step, from 0 to 1, in which each stage computes, as
    predicted; the rest are bubbles. Empty: nothing is predicted. ``computed``: how many micro-batches of a step each
    rank computes, some of which are of other pipelines; empty: those of this one. Raises ValueError for stages that do
    not match.
    """

    ranks: tuple[int, ...]
    starts: tuple[int, ...]
    num_micro_batches: int
    busy: tuple[float, ...] = ()
    computed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        num_stages = len(self.ranks)
        if len(self.starts) != num_stages or {len(self.busy), len(self.computed)} - {0, num_stages}:
            told = f"{len(self.starts)} starts, {len(self.busy)} predictions and {len(self.computed)} counts"
            raise ValueError(f"{num_stages} ranks, {told}")

    @property
    def idle(self) -> float | None:
        """The part of a step in which its ranks wait, as predicted."""
        busy = [each for each, rank in zip(self.busy, self.ranks, strict=False) if rank != LOST_RANK]
        return 1.0 - sum(busy) / len(busy) if busy else None

    def num_computed(self, stage: int) -> int:
        """Return how many micro-batches the rank of a stage computes in a step."""
        return self.computed[stage] if self.computed else self.num_micro_batches

    def layers_of(self, stage: int, num_layers: int) -> range:
        """Return the layers of a stage. ``num_layers``: of the model."""
        end = self.starts[stage + 1] if stage + 1 < len(self.starts) else num_layers
        return range(self.starts[stage], end)


def sizes_of(pipelines: Iterable[PipelineRanks]) -> tuple[int, ...]:
    """Return how many processes each has."""
    return tuple(sum(rank != LOST_RANK for rank in each.ranks) for each in pipelines)


def pipelines_text(sizes: Sequence[int]) -> str:
    """Return ``1 pipeline``, ``3 pipelines of 2``, ``2 pipelines of 2 and 3`` or ``16 pipelines of 2 to 5``."""
    if len(sizes) < 2:
        return "1 pipeline" if sizes else "many pipelines"
    *first, last = sorted(sizes)
    told = f"{len(sizes):,} pipelines of"
    if set(first) == {last}:
        return f"{told} {last}"
    if len(sizes) > MAX_SIZES:
        return f"{told} {first[0]} to {last}"
    return f"{told} {', '.join(map(str, first))} and {last}"

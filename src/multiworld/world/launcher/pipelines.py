"""Pipelines of a training, as its members and the launcher speak of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_SIZES = 4  # that are told one by one


@dataclass(frozen=True, kw_only=True)
class PipelineRanks:
    """One pipeline. ``ranks``: those of its stages, in order; stage ``i`` has the layers from ``starts[i]`` on.

    ``num_micro_batches``: of each step. ``busy``: the part of a step, from 0 to 1, in which each stage computes, as
    predicted; the rest are bubbles. Empty: nothing is predicted. Raises ValueError for stages that do not match.
    """

    ranks: tuple[int, ...]
    starts: tuple[int, ...]
    num_micro_batches: int
    busy: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.ranks) or len(self.busy) not in (0, len(self.ranks)):
            raise ValueError(f"{len(self.ranks)} ranks, {len(self.starts)} starts and {len(self.busy)} predictions")

    def layers_of(self, stage: int, num_layers: int) -> range:
        """Return the layers of a stage. ``num_layers``: of the model."""
        end = self.starts[stage + 1] if stage + 1 < len(self.starts) else num_layers
        return range(self.starts[stage], end)


def sizes_of(pipelines: Iterable[PipelineRanks]) -> tuple[int, ...]:
    return tuple(len(each.ranks) for each in pipelines)


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

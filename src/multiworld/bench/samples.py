"""Take samples in pairs, and reduce them to what is reported: medians, percentiles, and ratios of pairs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

__all__ = ["ASYNCIO", "BLOCKING", "RAW", "Pairs", "alternate", "joint_spans", "lane_names", "median", "percentile"]

T = TypeVar("T")
RAW = "raw"
ASYNCIO, BLOCKING = "asyncio", "blocking"


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least ``percent`` (0 to 100) of all do not exceed: one that was seen."""
    if not samples:
        raise ValueError("percentile of no samples")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent={percent!r}: expected 0 to 100")
    return sorted(samples)[max(0, math.ceil(percent / 100 * len(samples)) - 1)]


def joint_spans(moments: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Return, from each participant's (began, ended), the times from the first beginning to the last end."""
    together = zip(*moments, strict=True)
    return [max(ended for _, ended in each) - min(began for began, _ in each) for each in together]


@dataclass(frozen=True)
class Pairs:
    """Samples of ours and of a reference, element i of both taken one right after the other.

    What disturbs a shared machine lasts longer than one sample, so it hits both of a pair: the median of the pairs'
    ratios tells the two apart where the ratio of two medians would not.
    """

    ours: Sequence[float]
    reference: Sequence[float]

    def __post_init__(self) -> None:
        if not self.ours or len(self.ours) != len(self.reference):
            raise ValueError(
                f"{len(self.ours)} samples of ours and {len(self.reference)} of the reference are no pairs"
            )

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> Pairs:
        """Take them as (ours, reference)."""
        return cls([ours for ours, _ in samples], [reference for _, reference in samples])

    @property
    def ratios(self) -> list[float]:
        """Ours over the reference, pair by pair."""
        return [ours / reference for ours, reference in zip(self.ours, self.reference, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def ratio_quartiles(self) -> tuple[float, float]:
        """Between these lies the middle half of the ratios: how much to believe their median."""
        return percentile(self.ratios, 25), percentile(self.ratios, 75)

    @property
    def difference(self) -> float:
        """The median of ours minus the reference, pair by pair."""
        return median([ours - reference for ours, reference in zip(self.ours, self.reference, strict=True)])


def lane_names(backends: Sequence[str]) -> list[str]:
    """Return the names of a world's two ways to move tensors, for each backend."""
    return [f"{backend}, {api}" for backend in backends for api in (ASYNCIO, BLOCKING)]


def alternate(
    sample: Callable[[str], T], lanes: Sequence[str], num_pairs: int, *, reference: str = RAW
) -> dict[str, list[tuple[T, T]]]:
    """Return samples of each lane, each with one of the reference that was taken right before it."""
    pairs: dict[str, list[tuple[T, T]]] = {lane: [] for lane in lanes}
    for number in range(num_pairs + 1):
        for lane, samples in pairs.items():
            theirs = sample(reference)
            ours = sample(lane)
            if number > 0:  # the first round touches new memory
                samples.append((ours, theirs))
    return pairs

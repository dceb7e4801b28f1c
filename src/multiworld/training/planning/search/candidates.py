"""Partitions to compare: where each cuts the layers, and how it keeps within memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints
from ..times.bounds import lower_bounds_s
from ..times.rounds import iterations_s
from .places import Places
from .segments import Segments


@dataclass(frozen=True)
class Candidates:
    """``cuts``: [num_candidates, num_stages + 1], with zeros in front where a candidate has fewer stages.

    ``in_flight``: no stage holds more micro-batches than that. ``recompute``: activations are computed again.
    """

    cuts: Ints
    in_flight: Ints
    recompute: Bools

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        return cls(
            np.concatenate([each.cuts for each in parts]),
            np.concatenate([each.in_flight for each in parts]),
            np.concatenate([each.recompute for each in parts]),
        )

    def take(self, chosen: Ints | Bools) -> Candidates:
        return Candidates(self.cuts[chosen], self.in_flight[chosen], self.recompute[chosen])

    @property
    def num_stages(self) -> Ints:
        counts: Ints = (self.cuts[:, 1:] > self.cuts[:, :-1]).sum(1)
        return counts

    @property
    def limits(self) -> Ints:
        """Return how many micro-batches each stage holds in 1F1B, [num_stages, num_candidates]."""
        ahead = np.arange(self.cuts.shape[1] - 1, 0, -1)[:, None]
        return np.minimum(ahead, self.in_flight)


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Says what candidates take. ``counts``: micro-batches of a step, by number of stages."""

    segments: Segments
    places: Places
    counts: Ints

    def simulated_s(self, candidates: Candidates) -> Floats:
        """Return the exact time of a step of each."""
        return iterations_s(*self._times(candidates), candidates.limits, self.counts[candidates.num_stages])

    def bounds_s(self, candidates: Candidates) -> Floats:
        """Return what a step of each takes at least."""
        return lower_bounds_s(*self._times(candidates), candidates.limits, self.counts[candidates.num_stages])

    def fits(self, candidates: Candidates) -> Bools:
        """Return which of them have no empty stage behind a full one, and fit into memory."""
        first, end = candidates.cuts[:, :-1].T, candidates.cuts[:, 1:].T
        used = np.minimum(candidates.limits, self.counts[candidates.num_stages])
        needed = self.segments.needed_bytes(first, end, used, recompute=candidates.recompute)
        is_right: Bools = ((end == 0) | ((end > first) & (needed <= self.places.memory_bytes[:, None]))).all(0)
        return is_right

    def _times(self, candidates: Candidates) -> tuple[Floats, Floats, Floats]:
        cuts = candidates.cuts.T
        speeds = self.places.speeds[:, None]
        forward_s = np.diff(self.segments.forward_s[cuts], axis=0) / speeds
        backward_s = np.diff(self.segments.backward_s[cuts], axis=0) / speeds
        transfers_s = self.segments.transfer_s[cuts[1:]] * self.places.crosses[:, None]
        return forward_s, backward_s + np.where(candidates.recompute, forward_s, 0.0), transfers_s

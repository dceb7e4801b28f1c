"""Partitions to compare: where each cuts the layers, and how it keeps within memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints
from ..times.bounds import lower_bounds_s
from ..times.pipelines import Pipelines
from ..times.rounds import iterations_s
from .places import Places
from .segments import Segments


@dataclass(frozen=True)
class Way:
    """How to keep within memory: no stage holds more than ``in_flight`` micro-batches.

    ``recompute``: activations are computed again. ``split``: with gradients of weights put off, as in ZB-H1.
    """

    in_flight: int
    recompute: bool = False
    split: bool = False

    def is_free(self, num_stages: int) -> bool:
        """Return whether each of so many stages may hold as many micro-batches as the schedule wants."""
        return self.in_flight >= num_stages


@dataclass(frozen=True)
class Candidates:
    """``cuts``: [num_candidates, num_stages + 1], with zeros in front where a candidate has fewer stages.

    ``in_flight``, ``recompute``, ``split``: as in ``Way``, [num_candidates].
    """

    cuts: Ints
    in_flight: Ints
    recompute: Bools
    split: Bools

    @classmethod
    def of(cls, cuts: Ints, way: Way) -> Candidates:
        """Return candidates with these cuts, all in one way."""
        count = len(cuts)
        return cls(cuts, np.full(count, way.in_flight), np.full(count, way.recompute), np.full(count, way.split))

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        return cls(
            np.concatenate([each.cuts for each in parts]),
            np.concatenate([each.in_flight for each in parts]),
            np.concatenate([each.recompute for each in parts]),
            np.concatenate([each.split for each in parts]),
        )

    def take(self, chosen: Ints | Bools) -> Candidates:
        return Candidates(self.cuts[chosen], self.in_flight[chosen], self.recompute[chosen], self.split[chosen])

    def padded(self, num_stages: int) -> Candidates:
        """Return the same with room for so many stages."""
        front = np.zeros((len(self.cuts), num_stages + 1 - self.cuts.shape[1]), np.int64)
        return Candidates(np.concatenate((front, self.cuts), axis=1), self.in_flight, self.recompute, self.split)

    @property
    def num_stages(self) -> Ints:
        counts: Ints = (self.cuts[:, 1:] > self.cuts[:, :-1]).sum(1)
        return counts

    @property
    def limits(self) -> Ints:
        """Return how many micro-batches are between forward and backward, [num_stages, num_candidates]."""
        ahead = np.arange(self.cuts.shape[1] - 1, 0, -1)[:, None]
        return np.minimum(ahead, self.in_flight)

    @property
    def put_off(self) -> Ints:
        """Return how many micro-batches wait for their gradients of weights, [num_stages, num_candidates]."""
        width, num_stages = self.cuts.shape[1] - 1, self.num_stages
        index = np.arange(width)[:, None] - (width - num_stages)
        room = np.minimum(self.in_flight, num_stages) - self.limits
        return np.where(self.split, np.clip(np.minimum(index, room), 0, None), 0)

    @property
    def held(self) -> Ints:
        """Return how many micro-batches each stage holds, at most, [num_stages, num_candidates]."""
        return self.limits + self.put_off


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Says what candidates take. ``counts``: micro-batches of a step, by number of stages."""

    segments: Segments
    places: Places
    counts: Ints

    def simulated_s(self, candidates: Candidates) -> Floats:
        """Return the exact time of a step of each."""
        return iterations_s(self._pipelines(candidates), self.counts[candidates.num_stages])

    def bounds_s(self, candidates: Candidates) -> Floats:
        """Return what a step of each takes at least."""
        return lower_bounds_s(self._pipelines(candidates), self.counts[candidates.num_stages])

    def fits(self, candidates: Candidates) -> Bools:
        """Return which of them have no empty stage behind a full one, and fit into memory."""
        first, end = candidates.cuts[:, :-1].T, candidates.cuts[:, 1:].T
        held = np.minimum(candidates.held, self.counts[candidates.num_stages])
        needed = self.segments.needed_bytes(first, end, held, recompute=candidates.recompute)
        is_right: Bools = ((end == 0) | ((end > first) & (needed <= self.places.memory_bytes[:, None]))).all(0)
        return is_right

    def _pipelines(self, candidates: Candidates) -> Pipelines:
        cuts, speeds = candidates.cuts.T, self.places.speeds[:, None]
        forward_s = np.diff(self.segments.forward_s[cuts], axis=0) / speeds
        backward_s = np.diff(self.segments.backward_s[cuts], axis=0) / speeds
        weights_s = np.zeros_like(forward_s)
        if candidates.split.any():
            weights_s = np.where(candidates.split, np.diff(self.segments.weight_s[cuts], axis=0) / speeds, 0.0)
        return Pipelines(
            forward_s=forward_s,
            backward_s=backward_s + np.where(candidates.recompute, forward_s, 0.0) - weights_s,
            transfers_s=self.segments.transfer_s[cuts[1:]] * self.places.crosses[:, None],
            limits=candidates.limits,
            weights_s=weights_s,
            put_off=candidates.put_off,
        )

"""Which cuts keep the slowest stage below a limit: a dynamic program over the layers that are left, for all sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints
from .candidates import Candidates, Way
from .places import Places
from .segments import Segments

MODES = 3


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """All partitions under one way to keep within memory. Tables are by how many stages are behind a stage.

    ``work_s``: [num_stages, num_layers + 1, num_layers + 1], of each segment; infinite where it does not fit.
    ``least_s``: [num_stages + 1, num_layers + 1]: ``least_s[d, first]`` is the least work of the slowest of ``d``
    stages that share the layers from ``first`` on. ``shares_s``: an even share of these, [num_stages, num_layers + 1].
    """

    work_s: Floats
    least_s: Floats
    shares_s: Floats
    way: Way

    @classmethod
    def of(cls, segments: Segments, places: Places, most: int, way: Way) -> Partitions:
        """Return those that keep within memory in this way, with ``most`` micro-batches in a step."""
        work_s = np.empty((places.num_stages, segments.num_layers + 1, segments.num_layers + 1))
        least_s = np.full((places.num_stages + 1, segments.num_layers + 1), np.inf)
        least_s[0, -1] = 0.0
        plain = segments.work_s(recompute=way.recompute)
        known: dict[tuple[int, float], Bools] = {}
        for behind in range(places.num_stages):
            memory_bytes = float(places.memory_bytes[-1 - behind])
            held = min(way.in_flight if way.split else behind + 1, way.in_flight, most)
            key = (held if memory_bytes < np.inf else 0, memory_bytes)
            if key not in known:
                known[key] = segments.fits(*key, recompute=way.recompute)
            work_s[behind] = np.where(known[key], plain / places.speeds[-1 - behind], np.inf)
            least_s[behind + 1] = np.maximum(work_s[behind], least_s[behind]).min(1)
        shares_s = plain[:, -1] / np.cumsum(places.speeds[::-1])[:, None]
        return cls(work_s=work_s, least_s=least_s, shares_s=shares_s, way=way)

    def walk(self, num_stages: Ints, limits_s: Floats) -> Candidates:
        """Return ``MODES`` partitions for each limit, ``limits_s[i]`` with ``num_stages[i]`` stages.

        One has its cuts as early as can be, one as late as can be, and one as near as can be to an even share of what
        is left. No stage is above its limit, which is not below ``least_s[num_stages[i], 0]``.
        """
        count, width = len(num_stages), self.work_s.shape[0]
        sizes = np.tile(num_stages, MODES)
        limits = np.tile(limits_s, MODES)[:, None] * (1 + 1e-12)
        mode = np.repeat(np.arange(MODES), count)
        cuts = np.zeros((count * MODES, width + 1), np.int64)
        for behind in reversed(range(width)):
            begun = np.flatnonzero(sizes > behind)
            at = cuts[begun, width - 1 - behind]
            row = self.work_s[behind, at]
            allowed = (row <= limits[begun]) & (self.least_s[behind] <= limits[begun])
            cuts[begun, width - behind] = _chosen(row, allowed, mode[begun], self.shares_s[behind, at])
        return Candidates.of(cuts, self.way)


def _chosen(row: Floats, allowed: Bools, mode: Ints, share_s: Floats) -> Ints:
    """Return where the next stage ends, for each row: the first place allowed, the last, or that nearest to a share."""
    first = allowed.argmax(1)
    last = allowed.shape[1] - 1 - allowed[:, ::-1].argmax(1)
    nearest = np.where(allowed, np.abs(row - share_s[:, None]), np.inf).argmin(1)
    return np.choose(mode, (first, last, nearest))

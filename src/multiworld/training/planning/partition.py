"""Which cuts make the slowest stage as fast as can be: a dynamic program over the layers that are left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .segments import Bools, Floats


def bottlenecks(work_s: Floats, fits: Sequence[Bools]) -> Floats:
    """Return the least work of the slowest of ``d`` stages over the last layers: [len(fits) + 1, num_layers + 1].

    Entry ``[d, first]``: layers ``first`` to the last in ``d`` stages; infinite where they do not fit. ``fits[d]``:
    which segments fit as the stage that has ``d`` others behind it.
    """
    least = np.full((len(fits) + 1, len(work_s)), np.inf)
    least[0, -1] = 0.0
    for behind, fit in enumerate(fits):
        least[behind + 1] = np.where(fit, np.maximum(work_s, least[behind][None, :]), np.inf).min(1)
    return least


def even_cuts(work_s: Floats, fits: Sequence[Bools], least: Floats, num_stages: int, limit_s: float) -> list[int]:
    """Return cuts ``[0, ..., num_layers]`` with no stage above ``limit_s``, each as near as can be to an even share."""
    cuts, limit_s = [0], limit_s * (1 + 1e-12)
    for behind in reversed(range(num_stages)):
        row = work_s[cuts[-1]]
        (ends,) = np.nonzero(fits[behind][cuts[-1]] & (row <= limit_s) & (least[behind] <= limit_s))
        cuts.append(int(ends[np.abs(row[ends] - row[-1] / (behind + 1)).argmin()]))
    return cuts

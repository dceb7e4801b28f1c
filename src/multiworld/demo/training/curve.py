"""Draw the loss over the steps in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"


def draw_curve(losses: Sequence[float], kills: Collection[int], *, width: int = 72, height: int = 8) -> list[str]:
    """Return lines: the loss as bars, the highest at the top, and below it an ``x`` for each step with a kill."""
    if not losses:
        return []
    width = min(width, len(losses))
    bounds = [column * len(losses) // width for column in range(width + 1)]
    means = [sum(losses[begin:end]) / (end - begin) for begin, end in pairwise(bounds)]
    low, high = min(means), max(means)
    scale = (high - low) or 1.0
    filled = [(value - low) / scale * (height - 0.125) + 0.125 for value in means]
    lines = []
    for row in reversed(range(height)):
        cells = (BLOCKS[max(0, min(8, round(8 * (value - row))))] for value in filled)
        label = f"{high:6.3f} " if row == height - 1 else f"{low:6.3f} " if row == 0 else " " * 7
        lines.append((label + "".join(cells)).rstrip())
    hit = {column for column in range(width) for step in kills if bounds[column] <= step < bounds[column + 1]}
    lines.append(" " * 7 + "".join("x" if column in hit else "·" for column in range(width)))
    return lines

"""What all pictures share: an SVG document that needs nothing from elsewhere, for light and dark schemes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

WIDTH = 960
LEFT, RIGHT = 72, 24
STYLE = """
.back{fill:#fff}.ink{fill:#1b1f24}.soft{fill:#5b6575}.grid{stroke:#e3e6ea}.axis{stroke:#98a2b3}
text{font:12px system-ui,sans-serif}.title{font-size:16px;font-weight:600}.head{font-weight:600}.small{font-size:11px}
@media (prefers-color-scheme:dark){.back{fill:#0f1216}.ink{fill:#e6e9ee}.soft{fill:#98a2b3}.grid{stroke:#272d36}
.axis{stroke:#667085}}
"""


def document(parts: Sequence[str], height: float, style: str, label: str) -> str:
    """Return the whole document. ``style``: what this picture has beside ``STYLE``; ``label``: for screen readers."""
    height = round(height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(label)}">\n<style>{STYLE}{style.lstrip()}</style>\n'
        f'<rect class="back" width="{WIDTH}" height="{height}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, content: str, kind: str, *, anchor: str = "start") -> str:
    """Return text, escaped, of a class such as ``ink head``."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def line(points: Sequence[tuple[float, float]], kind: str, width: float) -> str:
    """Return a line through points."""
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{told}" fill="none" stroke-width="{width}" stroke-linejoin="round"/>'


def keys(parts: list[str], labels: Iterable[tuple[str, str]], y: float) -> float:
    """Add what the colours mean, as pairs of class and label, on as many lines as it takes; return the last one's y."""
    x: float = LEFT
    for kind, label in labels:
        width = 26 + 6.6 * len(label)
        if x + width > WIDTH - RIGHT:
            x, y = LEFT, y + 18
        parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" rx="2"/>')
        parts.append(text(x + 15, y, label, "soft small"))
        x += width
    return y


def nice_ticks(low: float, high: float, num: int = 5) -> list[float]:
    """Return some round numbers that enclose ``low`` and ``high``, the first and last included."""
    if not high > low:
        low, high = low - max(abs(low) / 2, 0.5), high + max(abs(high) / 2, 0.5)
    rough = (high - low) / max(1, num - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    pace = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)
    first, last = math.floor(low / pace + 1e-9), math.ceil(high / pace - 1e-9)
    return [round(pace * each, 12) for each in range(first, last + 1)]

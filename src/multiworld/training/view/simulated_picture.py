"""Replayed failures as a picture: for each trace what each system commits over time, and how many nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..simulating.replay import Replayed
from .svg import LEFT, RIGHT, WIDTH, document, keys, line, nice_ticks, text
from .words import number

NUM_POINTS = 160
CURVE_HEIGHT = 130
NODES_HEIGHT = 30
NUM_COLOURS = 6
STYLE = """
.s0{stroke:#2763d0}.s1{stroke:#d98613}.s2{stroke:#7d54c9}.s3{stroke:#0c8a61}.s4{stroke:#c8323c}.s5{stroke:#98a2b3}
.k0{fill:#2763d0}.k1{fill:#d98613}.k2{fill:#7d54c9}.k3{fill:#0c8a61}.k4{fill:#c8323c}.k5{fill:#98a2b3}
.nodes{stroke:#5b6575}
@media (prefers-color-scheme:dark){.s0{stroke:#6ea1ff}.s1{stroke:#e0a53d}.s2{stroke:#b294f0}.s3{stroke:#3fbf8f}
.s4{stroke:#ff7a80}.s5{stroke:#667085}.k0{fill:#6ea1ff}.k1{fill:#e0a53d}.k2{fill:#b294f0}.k3{fill:#3fbf8f}
.k4{fill:#ff7a80}.k5{fill:#667085}.nodes{stroke:#98a2b3}}
"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One trace and what some systems made of it, the most important one first. ``means``: others' means, by name."""

    title: str
    found: Sequence[Replayed]
    means: Sequence[tuple[str, float]] = ()


def simulated_picture(panels: Sequence[Panel]) -> str:
    """Return an SVG document with a panel below the other."""
    parts: list[str] = []
    parts.append(text(LEFT, 30, "failures replayed: samples a second", "ink title"))
    y = 36.0
    for panel in panels:
        y = _panel(parts, panel, y + 34)
    return document(parts, y + 20, STYLE, "replayed failures: samples a second over time")


def _panel(parts: list[str], panel: Panel, top: float) -> float:
    parts.append(text(LEFT, top, panel.title, "ink head"))
    names = [f"{each.system} {number(each.samples_per_s)}" for each in panel.found]
    names += [f"{name} {number(mean)}" for name, mean in panel.means]
    top = keys(parts, [(f"k{at % NUM_COLOURS}", name) for at, name in enumerate(names)], top + 20) + 18
    curves = [each.curve(NUM_POINTS) for each in panel.found]
    begins_s = min((curve[0][0] for curve in curves if curve), default=0.0)
    ends_s = max((span.ends_s for each in panel.found for span in each.spans), default=1.0)
    ticks = nice_ticks(0.0, max([rate for curve in curves for _, rate in curve] + [1e-9]), 4)
    room, bottom, high = WIDTH - LEFT - RIGHT, top + CURVE_HEIGHT, ticks[-1]

    def place(at_s: float, rate: float) -> tuple[float, float]:
        return LEFT + room * (at_s - begins_s) / max(ends_s - begins_s, 1e-9), bottom - CURVE_HEIGHT * rate / high

    for tick in ticks:
        y = place(0.0, tick)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(text(LEFT - 8, y + 4, number(tick), "soft small", anchor="end"))
    for at, (name, mean) in enumerate(panel.means, len(panel.found)):
        y = place(0.0, mean)[1]
        parts.append(
            f'<line class="s{at % NUM_COLOURS}" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" '
            f'stroke-dasharray="4 3"><title>{escape(f"{name}: a mean of {number(mean)}")}</title></line>'
        )
    for at, curve in reversed(list(enumerate(curves))):
        parts.append(line([place(*point) for point in curve], f"s{at % NUM_COLOURS}", 2.0 if at == 0 else 1.4))
    below = _nodes(parts, panel.found[0], begins_s, ends_s, bottom + 14)
    unit_s, unit = (3600.0, "h") if ends_s - begins_s > 5400 else (60.0, "min") if ends_s > 200 else (1.0, "s")
    for tick in nice_ticks(begins_s / unit_s, ends_s / unit_s, 8):
        x = place(tick * unit_s, 0.0)[0]
        if LEFT <= x <= WIDTH - RIGHT:
            parts.append(text(x, below + 14, f"{tick:g} {unit}", "soft small", anchor="middle"))
    return below + 16


def _nodes(parts: list[str], found: Replayed, begins_s: float, ends_s: float, top: float) -> float:
    """How many nodes there are, as steps."""
    bottom, most = top + NODES_HEIGHT, max((each.nodes for each in found.spans), default=1) or 1
    room = WIDTH - LEFT - RIGHT
    points: list[tuple[float, float]] = []
    for span in found.spans:
        y = bottom - (NODES_HEIGHT - 6) * span.nodes / most
        points += [
            (LEFT + room * max(0.0, at_s - begins_s) / max(ends_s - begins_s, 1e-9), y)
            for at_s in (span.begins_s, span.ends_s)
        ]
    parts.append(line(points, "nodes", 1.3))
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom:.1f}" x2="{WIDTH - RIGHT}" y2="{bottom:.1f}"/>')
    parts.append(text(LEFT - 8, top + 12, f"{most} nodes", "soft small", anchor="end"))
    parts.append(text(LEFT - 8, bottom + 4, "0", "soft small", anchor="end"))
    return bottom

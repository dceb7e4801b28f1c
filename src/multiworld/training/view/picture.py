"""The report of a training as a picture: the loss with the faults on it, and a timeline of each recovery. Pure.

The SVG needs nothing from elsewhere, and follows the reader's choice of a light or a dark scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from html import escape

from ...wire.shortened import shortened
from .pipelines_picture import STYLE as PIPELINES
from .pipelines_picture import add_pipelines
from .recoveries import PHASES, Recovery, Track
from .report import TrainingReport, lossy_causes
from .report_text import headline
from .svg import LEFT, RIGHT, WIDTH, document, keys, line, nice_ticks, text
from .words import duration, number

MAX_RECOVERIES = 20
MAX_TRACKS = 12
CURVE_HEIGHT = 190
REPLICAS_HEIGHT = 44
ROW = 18
STYLE = """
.loss{stroke:#2763d0}.replicas{stroke:#5b6575}.failure{stroke:#c8323c;fill:#c8323c}.join{stroke:#0c7552;fill:#0c7552}
.leave{stroke:#8c5900;fill:#8c5900}.detect{fill:#c8323c}.agree{fill:#d98613}.form{fill:#7d54c9}
.plan{fill:#8a4b00}.move,.transfer{fill:#2763d0}.redo{fill:#0c8a61}.other{fill:#98a2b3}.good{fill:#0c7552}.lost0{fill:#c8323c}.lost1{fill:#d98613}.lost2{fill:#7d54c9}
.lost3{fill:#2763d0}.lost4{fill:#98a2b3}
@media (prefers-color-scheme:dark){.loss{stroke:#6ea1ff}.replicas{stroke:#98a2b3}.failure{stroke:#ff7a80;fill:#ff7a80}
.join{stroke:#3fbf8f;fill:#3fbf8f}.leave{stroke:#e0a53d;fill:#e0a53d}.detect{fill:#ff7a80}.agree{fill:#e0a53d}
.plan{fill:#fff0c9}.form{fill:#b294f0}.move,.transfer{fill:#6ea1ff}.redo{fill:#3fbf8f}.other{fill:#667085}.good{fill:#3fbf8f}.lost0{fill:#ff7a80}
.lost1{fill:#e0a53d}.lost2{fill:#b294f0}.lost3{fill:#6ea1ff}.lost4{fill:#667085}}
"""


def picture(report: TrainingReport, clock: Callable[[float], str]) -> str:
    """Return an SVG document. ``clock``: shows a moment in Unix time."""
    parts: list[str] = []
    y = _title(parts, report, 30)
    y = _time_bar(parts, report, y + 8)
    if report.curve:
        y = _curve(parts, report, y + 40)
    for recovery in report.recoveries[:MAX_RECOVERIES]:
        y = _recovery(parts, recovery, clock, y + 26)
    if len(report.recoveries) > MAX_RECOVERIES:
        y += 26
        parts.append(text(LEFT, y, f"and {len(report.recoveries) - MAX_RECOVERIES} more", "soft"))
    seen = {span.name for each in report.recoveries for track in each.tracks for span in track.spans}
    if seen:
        y = _legend(parts, seen, y + 28)
    return document(parts, y + 24, STYLE + PIPELINES.lstrip(), f"training {report.job}: loss, failures and recoveries")


def _title(parts: list[str], report: TrainingReport, y: float) -> float:
    account = report.account
    of = "" if report.total is None else f" of {report.total:,}"
    told = [
        f"{account.num_steps:,}{of} steps in {duration(account.wall_s)}",
        f"goodput {100 * account.goodput:.1f} %",
        f"{len(report.failures)} failure{'s' * (len(report.failures) != 1)}",
    ]
    parts.append(text(LEFT, y, report.job, "ink title"))
    parts.append(text(LEFT, y + 20, ", ".join(told), "soft"))
    return y + 26


def _time_bar(parts: list[str], report: TrainingReport, y: float) -> float:
    """One bar of the whole wall time: what was good, and the causes of the rest."""
    wall_s, room = report.account.wall_s, WIDTH - LEFT - RIGHT
    if wall_s <= 0:
        return y
    shown = [("good", "good", report.account.good_s)]
    shown += [(cause, f"lost{min(at, 4)}", took_s) for at, (cause, took_s) in enumerate(lossy_causes(report.account))]
    x: float = LEFT
    for cause, kind, took_s in shown:
        width = room * took_s / wall_s
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="12">'
            f"<title>{escape(f'{cause}: {duration(took_s)}')}</title></rect>"
        )
        x += width
    return keys(
        parts,
        [(kind, f"{cause} {100 * took_s / wall_s:.1f} %") for cause, kind, took_s in shown if took_s > 0.0005 * wall_s],
        y + 28,
    )


def _curve(parts: list[str], report: TrainingReport, top: float) -> float:
    points = report.curve
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    room, bottom = WIDTH - LEFT - RIGHT, top + CURVE_HEIGHT

    def x_of(step: float) -> float:
        return LEFT + room * min(max((step - first) / (last - first), 0.0), 1.0)

    ticks = nice_ticks(min(value for _, value in points), max(value for _, value in points))
    low, high = ticks[0], ticks[-1]

    def y_of(value: float) -> float:
        return bottom - CURVE_HEIGHT * (value - low) / (high - low)

    parts.append(text(LEFT, top - 8, report.value_name or "", "ink head"))
    for tick in ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(text(LEFT - 8, y + 4, number(tick), "soft small", anchor="end"))
    parts += [_mark(recovery, x_of(recovery.step), top, bottom) for recovery in report.recoveries]
    parts.append(line([(x_of(step), y_of(value)) for step, value in points], "loss", 1.8))
    step_ticks = sorted({round(tick) for tick in nice_ticks(first, last) if first <= tick <= last} | {first})
    if report.pipelines:
        below = add_pipelines(parts, report.pipelines, last, x_of, bottom + 32)
    else:
        below = _replicas(parts, report, x_of, bottom + 22)
    parts += [text(x_of(tick), below + 16, f"{tick:,}", "soft small", anchor="middle") for tick in step_ticks]
    parts.append(text(WIDTH - RIGHT, below + 30, "step", "soft small", anchor="end"))
    return below + 30


def _mark(recovery: Recovery, x: float, top: float, bottom: float) -> str:
    """A fault on the curve: a line, and a sign that also says the kind without its colour."""
    sign = {"failure": f"M{x - 5:.1f} {top - 9:.1f}h10l-5 9z", "join": f"M{x - 5:.1f} {top:.1f}h10l-5 -9z"}.get(
        recovery.kind, f"M{x:.1f} {top - 10:.1f}l5 5l-5 5l-5 -5z"
    )
    told = escape(f"step {recovery.step}: {headline(recovery)}, {duration(recovery.took_s)}")
    return (
        f'<g class="{recovery.kind}"><title>{told}</title>'
        f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke-dasharray="3 3" fill="none"/>'
        f'<path d="{sign}" stroke="none"/></g>'
    )


def _replicas(parts: list[str], report: TrainingReport, x_of: Callable[[float], float], top: float) -> float:
    """How many replicas there were, as steps, below the curve."""
    bottom, most = top + REPLICAS_HEIGHT, max(1, report.max_replicas)
    points: list[tuple[float, float]] = []
    for step, replicas in report.replicas:
        y = bottom - (REPLICAS_HEIGHT - 10) * replicas / most
        if points:
            points.append((x_of(step), points[-1][1]))
        points.append((x_of(step), y))
    if points:
        points.append((WIDTH - RIGHT, points[-1][1]))
        parts.append(line(points, "replicas", 1.5))
    parts.append(text(LEFT - 8, bottom - REPLICAS_HEIGHT + 14, str(most), "soft small", anchor="end"))
    parts.append(text(LEFT - 8, bottom + 4, "0", "soft small", anchor="end"))
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom:.1f}" x2="{WIDTH - RIGHT}" y2="{bottom:.1f}"/>')
    parts.append(text(LEFT, top + 2, "replicas", "soft small"))
    return bottom


def _recovery(parts: list[str], recovery: Recovery, clock: Callable[[float], str], top: float) -> float:
    """A row for each member, with its phases, on the time since the recovery began."""
    took = f", {duration(recovery.took_s)} until the next commit" if recovery.committed_at is not None else ""
    parts.append(text(LEFT, top, f"step {recovery.step}: {headline(recovery)}{took}", "ink head"))
    cause = "; ".join(f"{each.cause}: {each.detail}" for each in recovery.lost) or recovery.kind
    parts.append(text(LEFT, top + 16, shortened(f"{clock(recovery.began_at)}  {cause}", 130), "soft small"))
    tracks = recovery.tracks[:MAX_TRACKS]
    if not tracks:
        return top + 18
    ends = [span.ended_at for track in recovery.tracks for span in track.spans]
    length_s = max([*ends, recovery.committed_at or 0.0]) - recovery.began_at
    room, y = WIDTH - LEFT - RIGHT, top + 26
    scale = room / length_s if length_s > 0 else 0.0
    for tick in nice_ticks(0.0, length_s * 1000):
        x = LEFT + scale * tick / 1000
        if x <= WIDTH - RIGHT:
            low = y + ROW * len(tracks)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{low:.1f}"/>')
            parts.append(text(x, low + 13, duration(tick / 1000), "soft small", anchor="middle"))
    for track in tracks:
        _row(parts, track, recovery.began_at, scale, y)
        y += ROW
    if recovery.committed_at is not None:
        x = LEFT + scale * (recovery.committed_at - recovery.began_at)
        parts.append(
            f'<line class="axis" x1="{x:.1f}" y1="{top + 22:.1f}" x2="{x:.1f}" y2="{y:.1f}" stroke-width="2">'
            "<title>the next step is committed</title></line>"
        )
    if len(recovery.tracks) > MAX_TRACKS:
        y += 28
        parts.append(text(LEFT, y, f"and {len(recovery.tracks) - MAX_TRACKS} more members", "soft small"))
        return y
    return y + 14


def _row(parts: list[str], track: Track, began_at: float, scale: float, y: float) -> None:
    parts.append(text(LEFT - 8, y + 13, f"rank {track.rank}", "soft small", anchor="end"))
    for span in track.spans:
        x = LEFT + scale * (span.began_at - began_at)
        kind = span.name if span.name in PHASES else "other"
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y + 3:.1f}" width="{max(scale * span.took_s, 1.0):.1f}" height="12" '
            f'rx="2"><title>{escape(f"rank {track.rank}: {span.name} {duration(span.took_s)}")}</title></rect>'
        )


def _legend(parts: list[str], seen: Collection[str], y: float) -> float:
    return keys(parts, [(name, name) for name in PHASES if name in seen], y)

"""A block at the bottom of a terminal that is redrawn; what happens scrolls above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from ..page.series import Point
from ..page.snapshot import Shown
from ..page.stories import Story
from .words import MARKS, clock, condition, megabytes, rate, seconds, share, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

STYLES = {"bad": "bold red", "warn": "yellow", "good": "green", "calm": "blue", "": "dim"}
LEFT_OUT = ("world",)
OTHER_LINES = 14  # of the block, beside those for replicas
LABEL_WIDTH = 26


class LiveView:
    """Needs ``rich``. Narrow terminals are shown fewer columns, low ones fewer replicas."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # an optional dependency
        from rich.live import Live

        self._console: Console = Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def note(self, story: Story) -> None:
        """Write one line above the block."""
        from rich.text import Text

        if story.category not in LEFT_OUT:
            style = STYLES[story.tone]
            line = Text(f"{clock(story.at)}  ", style="dim")
            self._console.print(line.append(f"{MARKS.get(story.tone, '○')} {story.text}", style=style))

    def update(self, shown: Shown, points: Sequence[Point]) -> None:
        """Redraw the block."""
        console = self._console
        self._live.update(block(shown, points, width=console.width, height=console.height), refresh=True)

    def close(self) -> None:
        """Remove the block."""
        self._live.stop()


def block(shown: Shown, points: Sequence[Point], *, width: int, height: int) -> RenderableType:
    """Return what is drawn: condition, curves, stages, replicas."""
    from rich.console import Group

    most = max(3, height - OTHER_LINES - len(shown.stages))
    return Group(
        _headline(shown), *_curves(shown, points, width), _stages(shown), _replicas(shown, most, is_wide=width >= 116)
    )


def _headline(shown: Shown) -> Text:
    from rich.text import Text

    tone, text = condition(shown)
    line = Text(f"{shown.name}  ", style="bold")
    return line.append(f"{MARKS[tone]} {text}", style=STYLES[tone])


def _curves(shown: Shown, points: Sequence[Point], width: int) -> list[Text]:
    totals = shown.totals
    room = max(10, width - LABEL_WIDTH - 1)
    latencies = f"p50 {seconds(totals.p50_s)}  p95 {seconds(totals.p95_s)}  p99 {seconds(totals.p99_s)}"
    counts = (
        f"{totals.open} open, {totals.waiting} waiting, {totals.answered:,} answered, "
        f"{totals.failed} failed, {totals.refused} refused"
    )
    return [
        _curve(f"answers {rate(totals.rate)}", [each.rate for each in points[-room:]]),
        _curve(f"p99 {seconds(totals.p99_s)}", [each.p99_s for each in points[-room:]]),
        _dim(f"{latencies}  {counts}"),
    ]


def _curve(label: str, values: Sequence[float | None]) -> Text:
    from rich.text import Text

    return Text(f"{label:<{LABEL_WIDTH}}").append(sparkline(values), style="cyan")


def _dim(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _table(*columns: str) -> Table:
    """Return a table; the columns whose names begin with # hold numbers."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column[:1] == "#" else "left", no_wrap=True)
    return table


def _stages(shown: Shown) -> Table:
    from rich.text import Text

    table = _table("stage", "#open", "#rate", "#busy", "#service", "#queue", "#version", "")
    for each in shown.stages:
        count = Text(f"{each.open}/{each.desired}", style="yellow" if each.open < each.desired else "")
        version = f"{each.version}→{each.updating_to}" if each.updating_to else str(each.version)
        numbers = (rate(each.rate), share(each.utilisation), seconds(each.service_s), str(each.queue))
        table.add_row(each.name, count, *numbers, version, Text(each.note, style="yellow"))
    return table


def _replicas(shown: Shown, most: int, *, is_wide: bool) -> Table:
    from rich.text import Text

    more = ("#pid", "host", "#window", "#done", "#cpu", "#memory") if is_wide else ()
    table = _table("replica", "state", "#queue", "#rate", "#service", "#busy", *more)
    replicas = sorted(shown.replicas, key=lambda each: each.tone == "good")  # who is not well comes first
    left_out = len(replicas) - most
    for each in replicas[: most - 1] if left_out > 0 else replicas:
        cells = [str(each.queue), rate(each.rate), seconds(each.service_s), share(each.utilisation)]
        if is_wide:
            window = "–" if each.window is None else str(each.window)
            cells += [str(each.pid or "–"), each.host, window, f"{each.done:,}"]
            cells += [share(each.cpu), megabytes(each.memory_mb)]
        table.add_row(each.id, Text(f"{MARKS[each.tone]} {each.says}", style=STYLES[each.tone]), *cells)
    if left_out > 0:
        table.add_row(f"{left_out + 1} more", "", *[""] * 4)
    return table

"""Show a run of the main job while it goes on: a live display on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TextIO

from ..serving import GATEWAY
from ..serving.view.words import sparkline
from .report import Report, Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

STATE_STYLES = {
    "active": "green",
    "ready": "green",
    "broken": "bold red",
    "killed": "bold red",
    "frozen": "bold blue",
    "leaving": "dim",
}
PLAIN_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ReplicaRow:
    """One replica as it stands; ``num_images`` went through it. ``pid`` is None until its process runs."""

    name: str
    pid: int | None
    state: str
    num_images: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """One moment of the run.

    ``throughput`` holds images a second for each interval, oldest first; ``worlds`` the state of each, by its upstream
    and downstream member.
    """

    elapsed_s: float
    throughput: Sequence[float]
    num_answered: int
    num_in_flight: int
    worlds: Mapping[tuple[str, str], str]
    replicas: Sequence[ReplicaRow]


class Display(Protocol):
    """Where the main job tells what happens. ``finish`` comes last, then ``close``."""

    def note(self, elapsed_s: float, text: str, *, alarming: bool = False) -> None:
        """Tell one event."""

    def update(self, status: Status) -> None:
        """Show the moment; called several times a second."""

    def finish(self, report: Report) -> None:
        """Show the final table."""

    def close(self) -> None:
        """Give the terminal back; idempotent."""


def choose_display(stream: TextIO | None = None) -> Display:
    """Return the live display when the stream is a terminal and rich is installed, else the plain one."""
    stream = sys.stdout if stream is None else stream
    if stream.isatty() and find_spec("rich") is not None:
        return LiveDisplay(stream)
    return PlainDisplay(stream)


class PlainDisplay:
    """Lines for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next_update_s = 0.0

    def close(self) -> None:
        self._stream.flush()

    def note(self, elapsed_s: float, text: str, *, alarming: bool = False) -> None:
        self._print(f"{elapsed_s:7.2f} s  {'! ' if alarming else ''}{text}")

    def update(self, status: Status) -> None:
        """Print one line a second, once there is something to tell."""
        if not status.worlds or status.elapsed_s < self._next_update_s:
            return
        self._next_update_s = status.elapsed_s + PLAIN_EVERY_S
        rate = status.throughput[-1] if status.throughput else 0.0
        unwell = [
            f"{_edge(world)} {state}"
            for world, state in sorted(status.worlds.items(), key=_in_order)
            if state != "active"
        ]
        worlds = ", ".join(unwell) or f"{len(status.worlds)} worlds active"
        self._print(f"{status.elapsed_s:7.2f} s  {rate:7,.0f} images/s  {status.num_answered:8,} answered  {worlds}")

    def finish(self, report: Report) -> None:
        rows = report.rows()
        width = max(len(row.name) for row in rows)
        self._print("\n" + "\n".join(f"  {row.name:<{width}}  {row.value}{_verdict(row)}" for row in rows))
        if report.error:
            self._print(f"\n{report.error}")
        self._print("\n" + _conclusion(report))

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveDisplay:
    """A block at the bottom of the terminal that is redrawn, with the events scrolling above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # an optional dependency
        from rich.live import Live

        self._console: Console = Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def note(self, elapsed_s: float, text: str, *, alarming: bool = False) -> None:
        from rich.text import Text

        line = Text(f"{elapsed_s:7.2f} s  ", style="dim").append(text, style="bold red" if alarming else "default")
        self._console.print(line)

    def update(self, status: Status) -> None:
        self._live.update(block(status, width=self._console.width), refresh=True)

    def finish(self, report: Report) -> None:
        from rich.table import Table
        from rich.text import Text

        self._live.stop()
        table = Table(title="multiworld demo", title_justify="left", show_header=False)
        for row in report.rows():
            style = {True: "green", False: "bold red", None: "default"}[row.holds]
            table.add_row(row.name, Text(row.value + _verdict(row), style=style))
        self._console.print(table)
        if report.error:
            self._console.print(Text(report.error, style="red"))
        self._console.print(Text(_conclusion(report), style="bold green" if report.holds else "bold red"))


def block(status: Status, *, width: int) -> RenderableType:
    """Return what the live display draws: throughput, replicas and worlds."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rate = status.throughput[-1] if status.throughput else 0.0
    head = f"{status.elapsed_s:5.1f} s   {rate:7,.0f} images/s   {status.num_answered:,} answered   "
    bars = sparkline(status.throughput[-max(1, width - 2) :])
    tables = Table.grid(padding=(0, 4, 0, 0))
    tables.add_row(_replicas(status), _worlds(status))
    return Group(Text(head + f"{status.num_in_flight} in flight"), Text(bars, style="cyan"), tables)


def _replicas(status: Status) -> Table:
    table = _table("replica", "pid", "state", "images")
    for row in sorted(status.replicas, key=lambda row: row.name):
        table.add_row(row.name, str(row.pid or ""), _state(row.state), f"{row.num_images:,}")
    return table


def _worlds(status: Status) -> Table:
    table = _table("world", "state")
    for world, state in sorted(status.worlds.items(), key=_in_order):
        table.add_row(_edge(world), _state(state))
    return table


def _table(*titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, justify="right" if title == "images" else "left")
    return table


def _state(state: str) -> Text:
    from rich.text import Text

    return Text(state, style=STATE_STYLES.get(state, "yellow"))


def _in_order(item: tuple[tuple[str, str], str]) -> tuple[bool, tuple[str, str]]:
    """Sort worlds as requests pass them: what comes from the gateway first."""
    return (not item[0][0].startswith(GATEWAY), item[0])


def _edge(world: tuple[str, str]) -> str:
    return " → ".join(world)


def _verdict(row: Row) -> str:
    return {True: "  ok", False: "  FAILED", None: ""}[row.holds]


def _conclusion(report: Report) -> str:
    if report.holds:
        return "Everything held."
    failed = [row.name for row in report.rows() if row.holds is False]
    return "It did NOT hold: " + ("; ".join(failed) or "the run ended early")

"""Traces: which nodes come and are lost when. Read from text, or drawn from a mean time between failures. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..errors import TraceError

JOIN, LOSS = "join", "loss"
KINDS = {"join": JOIN, "add": JOIN, "loss": LOSS, "lost": LOSS, "fail": LOSS, "remove": LOSS}
"""The words that a file may use."""
MAX_EVENTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Change:
    """What happens at one moment, in seconds since the start of the trace."""

    at_s: float
    joined: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trace:
    """``changes``: in the order of time, one for each moment. ``end_s``: when the trace ends."""

    name: str
    changes: tuple[Change, ...]
    end_s: float

    @property
    def num_losses(self) -> int:
        return sum(len(each.lost) for each in self.changes)

    @property
    def num_joins(self) -> int:
        """Nodes that come after the start."""
        return sum(len(each.joined) for each in self.changes if each.at_s > self.changes[0].at_s)

    @property
    def most_nodes(self) -> int:
        """The most nodes that are there at one moment."""
        most = nodes = 0
        for each in self.changes:
            nodes += len(each.joined) - len(each.lost)
            most = max(most, nodes)
        return most

    @property
    def mean_s(self) -> float:
        """The mean time from one change to the next, after the start."""
        return self.end_s / max(1, len(self.changes) - 1)

    @property
    def nodes_at_start(self) -> int:
        return len(self.changes[0].joined) if self.changes else 0


@dataclass(frozen=True, kw_only=True)
class Event:
    """One node comes or is lost. ``line``: of the file, 0 if there is none."""

    at_s: float
    kind: str
    node: str
    line: int = 0


def trace_of(name: str, events: Iterable[Event], *, end_s: float | None = None) -> Trace:
    """Return the trace of these events, which may be in any order; nodes that are there at first join at the start.

    It ends with its last event, if nothing else is said. Raises TraceError for a node that joins while it is there, or
    is lost while it is not.
    """
    there: set[str] = set()
    moments: dict[float, tuple[list[str], list[str]]] = {}
    for event in sorted(events, key=lambda each: each.at_s):  # stable: the order of the file at one moment
        joined, lost = moments.setdefault(event.at_s, ([], []))
        if event.kind == JOIN and event.node not in there:
            there.add(event.node)
            joined.append(event.node)
        elif event.kind == LOSS and event.node in there and event.node not in joined:
            there.remove(event.node)
            lost.append(event.node)
        else:
            place = f"line {event.line}" if event.line else f"at {event.at_s:g} s"
            state = "joins, but it is there already" if event.kind == JOIN else "is lost, but it is not there then"
            raise TraceError(name, place, f"{event.node} {state}")
    if not moments:
        raise TraceError(name, "", "there is no event in it")
    changes = tuple(
        Change(at_s=at_s, joined=tuple(joined), lost=tuple(lost)) for at_s, (joined, lost) in moments.items()
    )
    return Trace(name=name, changes=changes, end_s=changes[-1].at_s if end_s is None else end_s)


def read_trace(source: str, text: str, *, unit_s: float = 1.0) -> Trace:
    """Return the trace in a text of lines ``TIME,join|loss,NODE``. ``unit_s``: of the times, 0.001 for milliseconds.

    ``add`` and ``remove`` are understood, too; empty lines, lines that begin with ``#`` and a header are passed over.
    Raises TraceError with the line that is wrong.
    """
    events: list[Event] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = [each.strip() for each in line.split(",")]
        if not line.strip() or line.lstrip().startswith("#") or (not events and words[0].lower() in ("time", "time_s")):
            continue
        if len(words) != 3 or not words[2]:
            raise TraceError(source, f"line {number}", f"expected TIME,join|loss,NODE, found {_told(line)}")
        if (kind := KINDS.get(words[1].lower())) is None:
            raise TraceError(source, f"line {number}", f"expected join or loss, found {_told(words[1])}")
        events.append(Event(at_s=_time(source, number, words[0]) * unit_s, kind=kind, node=words[2], line=number))
        if len(events) > MAX_EVENTS:
            raise TraceError(source, f"line {number}", f"there are more than {MAX_EVENTS:,} events")
    return trace_of(source, events)


def _time(source: str, line: int, word: str) -> float:
    try:
        time = float(word)
    except ValueError:
        time = math.nan
    if not 0.0 <= time < math.inf:
        raise TraceError(source, f"line {line}", f"expected a time, at least 0, found {_told(word)}")
    return time


def _told(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def drawn_trace(
    name: str,
    nodes: Sequence[str],
    *,
    mean_s: float,
    end_s: float,
    uniform: Callable[[], float],
    back_after_s: float | None = None,
    fewest: int = 1,
) -> Trace:
    """Return a trace in which a node is lost every ``mean_s`` on average, with exponential times between losses.

    ``uniform`` returns numbers from 0 up to 1: the caller's seed is in it. ``back_after_s``: so long after its loss a
    node is there again; None: never. No more nodes are lost once only ``fewest`` are left.
    """
    events = [Event(at_s=0.0, kind=JOIN, node=node) for node in nodes]
    there, away = list(nodes), list[tuple[float, str]]()
    at_s = 0.0
    while (at_s := at_s - mean_s * math.log(1.0 - uniform())) < end_s and len(events) < MAX_EVENTS:
        while away and away[0][0] <= at_s:
            back_s, node = away.pop(0)
            events.append(Event(at_s=back_s, kind=JOIN, node=node))
            there.append(node)
        if len(there) > fewest:
            node = there.pop(min(int(uniform() * len(there)), len(there) - 1))
            events.append(Event(at_s=at_s, kind=LOSS, node=node))
            if back_after_s is not None:
                away.append((at_s + back_after_s, node))
        elif not away:
            break
    events += [Event(at_s=back_s, kind=JOIN, node=node) for back_s, node in away if back_s < end_s]
    return trace_of(name, events, end_s=end_s)

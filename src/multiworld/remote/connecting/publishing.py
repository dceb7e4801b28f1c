"""Tell the launcher how the nodes stand, and which lines wait for them: for its page, and for ``multiworld nodes``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...wire.shortened import shortened
from ...world.launcher.remote_nodes import MAX_LENGTH, MAX_LINES, MAX_NODES, RemoteNode, RemoteNodes, RemoteWaits
from ..session.statistics import NodeReport, NodesStatistics
from ..session.waits import LineWaits, WaitTable

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
CLOSE_S: Final = 5.0
ABSENT: Final = "it has not come yet"


class Publisher:
    """``statistics`` asks the nodes, and may take a second. ``tell`` gets the news each second, on our thread.

    ``has_ended``: whether nodes are being released, or were.
    """

    def __init__(
        self,
        *,
        rank: int,
        numbers: Callable[[], Iterable[int]],
        statistics: Callable[[], NodesStatistics],
        tell: Callable[[RemoteNodes], None],
        has_ended: Callable[[], bool],
    ) -> None:
        self._rank, self._numbers, self._statistics, self._tell = rank, numbers, statistics, tell
        self._has_ended = has_ended
        self._table = WaitTable(counts=False)
        self._ends = threading.Event()
        self._last: RemoteNodes | None = None
        self._thread = threading.Thread(target=self._run, name="multiworld-remote-news", daemon=True)

    def start(self) -> None:
        self._table.listen()
        self._thread.start()

    def close(self) -> None:
        """Say that it has ended. Idempotent."""
        if self._ends.is_set():
            return
        self._ends.set()
        self._thread.join(CLOSE_S)
        self._table.unlisten()
        if self._last is not None:
            self._tell(replace(self._last, lines=shown_lines(self._table.lines()), ended=True))

    def publish(self) -> None:
        """Tell how the nodes stand now."""
        statistics = self._statistics()
        if self._has_ended():  # so it may show nodes as lost that were released
            return
        self._last = news_of(self._rank, self._numbers(), statistics, self._table.lines())
        self._tell(self._last)

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self.publish()
            except Exception:
                logger.exception("the launcher could not be told how the nodes stand")
            self._ends.wait(EVERY_S)


def news_of(rank: int, numbers: Iterable[int], statistics: NodesStatistics, lines: Sequence[LineWaits]) -> RemoteNodes:
    """Return what is told. ``numbers``: of all nodes, also of those that have not come."""
    there = {number for number, report in statistics.nodes.items() if not report.lost}
    known = sorted({*numbers, *statistics.nodes}, key=lambda number: (number in there, number))
    told = known[:MAX_NODES]  # lost ones first: the launcher may start them
    return RemoteNodes(
        rank=rank,
        syncs=statistics.syncs,
        nodes=tuple(_shown(number, statistics.nodes) for number in sorted(told)),
        lines=shown_lines(lines),
        left_out=len(known) - len(told),
    )


def shown_lines(lines: Sequence[LineWaits]) -> tuple[RemoteWaits, ...]:
    """Return those that wait most; ``lines`` are in that order."""
    return tuple(
        RemoteWaits(
            line=line.line[-MAX_LENGTH:],
            operations=shortened(", ".join(line.operations), MAX_LENGTH),
            num_waits=line.num_waits,
            waited_s=round(line.waited_s, 6),
            longest_s=round(line.longest_s, 6),
            received_bytes=line.received_bytes,
        )
        for line in lines[:MAX_LINES]
    )


def _shown(number: int, reports: Mapping[int, NodeReport]) -> RemoteNode:
    report = reports.get(number)
    if report is None:
        return RemoteNode(
            number=number,
            host="",
            pid=0,
            generation=-1,
            lost=ABSENT,
            num_commands=0,
            num_unconfirmed=0,
            sent_bytes=0,
            fetched_bytes=0,
            num_waits=0,
            num_failures=0,
        )
    return RemoteNode(
        number=number,
        host=shortened(report.host, MAX_LENGTH),
        pid=report.pid,
        generation=report.generation,
        lost=shortened(report.lost, MAX_LENGTH),
        num_commands=report.num_commands,
        num_unconfirmed=report.num_unconfirmed,
        sent_bytes=report.sent_bytes,
        fetched_bytes=report.fetched_bytes,
        num_waits=report.num_waits,
        num_failures=report.num_failures,
        num_tensors=report.num_tensors,
        memory_bytes=report.memory_bytes,
    )

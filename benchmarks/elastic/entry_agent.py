"""The agent of a host whose workers exist only in its reports: no processes, no torch at work."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from multiworld.elastic.agent.clock import now_us
from multiworld.elastic.job.actions import (
    Exited,
    Greeted,
    HostReport,
    Master,
    MasterOpened,
    OpenMaster,
    Order,
    Reassign,
    Report,
    Start,
    Stop,
    WorkerReport,
)
from multiworld.elastic.job.assignment import Assignment, Membership
from multiworld.elastic.job.failure import FailureCause, WorkerFailure
from multiworld.wire.progress.thread import ProgressThread

__all__ = ["ROLE", "Entry", "EntryAgent"]

ROLE = "default"


@dataclass
class Entry:
    """A worker that does nothing."""

    id: str
    assignment: Assignment
    returncode: int | None = None
    ordered: bool = False
    quiet: bool = False
    began_at: float = field(default_factory=time.monotonic)


class EntryAgent:
    """What ``elastic.agent.Agent`` is to the leadership. Progress thread only."""

    def __init__(self, loop: ProgressThread, report: Callable[[Report], None]) -> None:
        self._loop, self._report = loop, report
        self._ports = itertools.count(1)
        self.entries: dict[int, Entry] = {}  # by local rank
        self._master: Master | None = None
        self.twice: list[str] = []
        """What must not be: a worker that was started while another ran in its slot."""

    def obey(self, order: Order) -> None:
        if isinstance(order, Start):
            assignment = order.assignment
            before = self.entries.get(assignment.local_rank)
            if before is not None and before.returncode is None:
                self.twice.append(f"{order.worker} beside {before.id}")
            self.entries[assignment.local_rank] = Entry(order.worker, assignment)
            self._report(Greeted(worker=order.worker))
        elif isinstance(order, Reassign):
            for entry in self.entries.values():
                if entry.id == order.worker:
                    entry.assignment = order.assignment
        elif isinstance(order, Membership):
            for entry in self.entries.values():
                if entry.returncode is None:
                    entry.assignment = order.renewed(entry.assignment, ROLE)
        elif isinstance(order, Stop):
            for worker in order.workers:
                self._loop.call_later(0.01, partial(self.exit, worker, -15, ordered=True, quiet=order.quiet))
        elif isinstance(order, OpenMaster):
            self._master = Master(order.generation, "127.0.0.1", next(self._ports))
            generation, address, port = self._master
            self._report(MasterOpened(generation=generation, address=address, port=port))

    def exit(self, worker: str, returncode: int, *, ordered: bool = False, quiet: bool = False) -> None:
        for entry in self.entries.values():
            if entry.id == worker and entry.returncode is None:
                entry.returncode, entry.ordered, entry.quiet = returncode, ordered, quiet
                self._report_exit(entry)

    def _report_exit(self, entry: Entry) -> None:
        assert entry.returncode is not None
        self._report(
            Exited(
                worker=entry.id,
                returncode=entry.returncode,
                failure=_failure(entry, entry.returncode) if entry.returncode and not entry.quiet else None,
                ordered=entry.ordered,
                clock_us=now_us(),
            )
        )

    def use_store(self, url: str) -> None:
        """No world is formed here."""

    def introduction(self) -> HostReport:
        reports = [
            WorkerReport(
                worker=entry.id,
                local_rank=local_rank,
                assignment=entry.assignment,
                succeeded=entry.returncode == 0,
                uses_multiworld=True,
                worlds=(),
                restart_ages_s=(),
                ended=entry.returncode is not None,
            )
            for local_rank, entry in self.entries.items()
        ]
        ages_s = {entry.id: time.monotonic() - entry.began_at for entry in self.entries.values()}
        return HostReport(workers=tuple(reports), master=self._master, ages_s=ages_s)

    def repeat(self) -> None:
        for entry in list(self.entries.values()):
            if entry.returncode is not None:
                self._report_exit(entry)

    def fence(self, then: Callable[[], None], *, forgets: bool = False) -> None:
        kept = {} if forgets else {rank: each for rank, each in self.entries.items() if each.returncode == 0}
        self.entries = kept
        self._loop.call_soon(then)

    @property
    def running(self) -> list[str]:
        return [entry.id for entry in self.entries.values() if entry.returncode is None]

    @property
    def pids(self) -> dict[str, int]:
        return {}  # its workers are no processes

    @property
    def num_running(self) -> int:
        return sum(entry.returncode is None for entry in self.entries.values())


def _failure(entry: Entry, returncode: int) -> WorkerFailure:
    assignment = entry.assignment
    return WorkerFailure(
        rank=assignment.rank,
        local_rank=assignment.local_rank,
        node_rank=assignment.node_rank,
        role=ROLE,
        hostname="here",
        pid=os.getpid(),
        generation=assignment.generation,
        returncode=returncode,
        at_us=now_us(),
        cause=FailureCause.SIGNAL,
        text="simulated",
    )

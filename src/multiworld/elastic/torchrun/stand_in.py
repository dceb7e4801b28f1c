"""What the coordinator takes for the one worker of a host: it stands for all workers that torchrun's agent starts."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..agent.clock import now_us
from ..job.actions import Exited, HostReport, Master, OpenMaster, Order, Reassign, Report, Start, Stop, WorkerReport
from ..job.assignment import Assignment, Membership
from ..job.failure import FailureCause, WorkerFailure

ROLE = "torchrun"

AS_ORDERED = -int(signal.SIGTERM)
BEGINS_ANEW = -int(signal.SIGKILL)  # a death that is nobody's fault: all are started again without delay
CANNOT = 1  # one that is, so that it is not tried again at once


@dataclass(eq=False)
class Part:
    """This host's part in one generation. ``worker`` is how the coordinator calls it."""

    worker: str
    assignment: Assignment
    returncode: int | None = None
    is_recalled: bool = False
    """It is to end: a stop was ordered, or it was given up."""
    began_at: float = field(default_factory=time.monotonic)

    @property
    def stands(self) -> bool:
        """Whether the generation goes on, or has ended well here."""
        return not self.is_recalled and not self.returncode


class StandIn:
    """What ``Agent`` is to the leadership, where torchrun's agent holds the workers. Progress thread only.

    That agent is either *waiting*, in ``next_rendezvous``, or out with a part, whose workers run or are being stopped.
    A part that is recalled has ended when the agent comes back to wait. ``on_left``: the others are to go on without
    this host, whose workers have ended well and cannot be started again.
    """

    def __init__(
        self,
        report: Callable[[Report], None],
        *,
        open_master: Callable[[int], None],
        serving: Callable[[], Master | None],
        on_change: Callable[[], None],
        on_left: Callable[[], None],
    ) -> None:
        self._report, self._open_master, self._serving = report, open_master, serving
        self._on_change, self._on_left = on_change, on_left
        self.part: Part | None = None
        """The last that the coordinator has ordered."""
        self.out: Part | None = None
        """What torchrun's agent is out with; None while it waits."""
        self.has_met = False
        """Whether this host was ever one of the job's."""
        self.has_finished = False
        self._is_waiting = False
        self._last_generation = 0  # in which workers were started here
        self._when_back: list[Callable[[], None]] = []

    # ---- what torchrun's agent does

    @property
    def ready(self) -> Part | None:
        """The part that the waiting agent can go out with."""
        part = self.part
        return part if self._is_waiting and part is not None and part.stands and part.returncode is None else None

    @property
    def is_wanted(self) -> bool:
        """Whether the agent should come back to wait."""
        return self.out is not None and (self.part is not self.out or not self.out.stands)

    def arrive(self) -> None:
        """The agent waits: its workers, if it had any, have been stopped."""
        part, self.out = self.out, None
        self._is_waiting = True
        if part is not None and part is self.part:
            self._end(part, AS_ORDERED if part.is_recalled else BEGINS_ANEW)
        waiting, self._when_back = self._when_back, []
        for then in waiting:
            then()
        self._on_change()

    def depart(self, part: Part) -> bool:
        """The agent goes out to start its workers. False if this part is over already."""
        if self.ready is not part:
            return False
        self._is_waiting, self.out = False, part
        self._last_generation = part.assignment.generation
        return True

    def finish(self, part: Part) -> None:
        """All workers of this host have ended well."""
        self.has_finished = True
        if part is self.part and part.stands:
            self._end(part, 0)
        else:
            self._on_left()

    # ---- what the leadership wants

    def obey(self, order: Order) -> None:
        if isinstance(order, Start):
            self._start(Part(order.worker, order.assignment))
        elif isinstance(order, Reassign) and self.part is not None and self.part.worker == order.worker:
            self.part.assignment = order.assignment
        elif isinstance(order, Membership) and self.part is not None and self.part.stands:
            self.part.assignment = order.renewed(self.part.assignment, ROLE)
        elif isinstance(order, Stop) and self.part is not None and self.part.worker in order.workers:
            self._recall(self.part)
        elif isinstance(order, OpenMaster):
            self._open_master(order.generation)

    def use_store(self, url: str) -> None:
        """Worlds are formed at this store; torchrun's workers have no use for it."""

    def introduction(self) -> HostReport:
        """Return what a coordinator must know of this host."""
        self._drop_if_ended_as_ordered()
        part, serving = self.part, self._serving()
        reports, ages_s = [], {}
        if part is not None:
            report = WorkerReport(
                worker=part.worker,
                local_rank=0,
                assignment=part.assignment,
                succeeded=part.returncode == 0,
                uses_multiworld=False,
                worlds=(),
                restart_ages_s=(),
                stopping=part.is_recalled and part.returncode is None,
                ended=part.returncode is not None,
            )
            reports.append(report)
            ages_s[part.worker] = time.monotonic() - part.began_at
        return HostReport(workers=tuple(reports), master=serving, ages_s=ages_s)

    def repeat(self) -> None:
        """The coordinator knows us now: tell it what it may not have heard."""
        self.has_met = True
        if self.part is not None and self.part.returncode is not None:
            self._report_exit(self.part)

    def fence(self, then: Callable[[], None], *, forgets: bool = False) -> None:
        """Recall the agent, as others may be started in its place; ``then`` is called when it is back."""
        part = self.part
        if part is not None and (part.returncode != 0 or forgets):
            part.is_recalled, self.part = True, None
        if self.out is None or self.has_finished:
            then()
        else:
            self._when_back.append(then)
        self._on_change()

    @property
    def running(self) -> list[str]:
        return [] if self.part is None or self.part.returncode is not None else [self.part.worker]

    @property
    def pids(self) -> dict[str, int]:
        """The processes are torchrun's, and are not known here."""
        return {}

    @property
    def num_running(self) -> int:
        return int(self.out is not None and self.out.returncode is None)

    # ---- parts

    def _start(self, part: Part) -> None:
        if self.has_finished:
            self._on_left()
            return
        if self.part is not None:
            self.part.is_recalled = True  # the coordinator has given it up
        self.part = part
        if part.assignment.generation == self._last_generation:  # its store was used, so a fresh one is needed
            self._end(part, CANNOT)
        self._on_change()

    def _recall(self, part: Part) -> None:
        part.is_recalled = True
        if self.out is not part:  # nothing was started for it
            self._end(part, AS_ORDERED)
        self._on_change()

    def _end(self, part: Part, returncode: int) -> None:
        if part.returncode is None:
            part.returncode = returncode
            self._report_exit(part)

    def _report_exit(self, part: Part) -> None:
        assert part.returncode is not None
        self._report(
            Exited(
                worker=part.worker,
                returncode=part.returncode,
                failure=None if not part.returncode else _failure(part.assignment, part.returncode),
                ordered=part.is_recalled,
                clock_us=now_us(),
            )
        )

    def _drop_if_ended_as_ordered(self) -> None:
        part = self.part
        if part is not None and part.is_recalled and part.returncode:
            self.part = None  # nobody needs to hear of it again


def _failure(assignment: Assignment, returncode: int) -> WorkerFailure:
    return WorkerFailure(
        rank=assignment.rank,
        local_rank=assignment.local_rank,
        node_rank=assignment.node_rank,
        role="default",
        hostname=socket.gethostname(),
        pid=os.getpid(),
        generation=assignment.generation,
        returncode=returncode,
        at_us=now_us(),
        cause=FailureCause.SIGNAL,
        text="torchrun starts the workers of that host again",
    )

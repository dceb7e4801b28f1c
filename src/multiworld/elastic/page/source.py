"""From where the page of a job learns how the job stands, while this agent coordinates it and serves the page."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...observe.server import PageServer
from ...observe.snapshots import Snapshots
from ...wire.endpoints.addresses import is_address
from ...wire.endpoints.bracketed import bracketed
from ...wire.progress.thread import ProgressThread
from ..job.actions import Record
from ..job.failure import WorkerFailure
from ..job.history import Event
from ..job.job import Job
from ..job.status import JobStatus
from ..leadership.coordinator import Coordinator
from .site import ReadLines, serve_job
from .snapshot import Snapshot, shown_failures

logger = logging.getLogger(__name__)

MAX_EVENTS, MAX_FAILURES = 200, 20
WILDCARDS = ("0.0.0.0", "::")


class PageSource:
    """Progress thread only, but for ``join``. ``address``: where to serve, or None for nowhere.

    ``host``: by what name others know this host. ``status``: what the control server knows of the job.
    """

    def __init__(
        self,
        loop: ProgressThread,
        address: tuple[str, int] | None,
        *,
        token: str,
        host: str,
        status: Callable[[], JobStatus | None],
        read_lines: ReadLines,
    ) -> None:
        assert address is None or is_address(address[0])
        self._loop, self._address, self._token, self._host, self._status = loop, address, token, host, status
        self._read_lines = read_lines
        self._coordinator: Coordinator | None = None
        self._server: PageServer | None = None
        self._snapshots: Snapshots[Snapshot] | None = None
        self._began_at: float | None = None  # the first event is not kept for ever
        self._failures: dict[tuple[int, int], WorkerFailure] = {}  # the job forgets those that had no consequence
        self.url: str | None = None
        """Where the page is, while it is served."""

    def leads(self, coordinator: Coordinator | None) -> None:
        """This agent coordinates the job from now on; None: no longer."""
        self.close()
        if coordinator is None or self._address is None:
            return
        snapshots = Snapshots(self._loop, self._take)
        try:
            self._server = serve_job(
                *self._address, token=self._token, snapshots=snapshots, read_lines=self._read_lines
            )
        except OSError as error:
            logger.warning("no page is served: %s:%d: %s", *self._address, error.strerror)
            return
        self._coordinator, self._snapshots = coordinator, snapshots
        coordinator.events.watchers.append(self._happened)
        host = self._host if self._address[0] in WILDCARDS else self._address[0]
        self.url = f"http://{bracketed(host)}:{self._server.port}/"
        needs = " (?token= and the job's token)" if self._server.site.access.sites.is_open else ""
        record = Record(kind="page", text=f"the page of this job: {self.url}{needs}", fields={"url": self.url})
        coordinator.record(record, is_notable=coordinator.term > 1)  # it is elsewhere now than before

    def close(self) -> None:
        """Idempotent; does not wait."""
        if self._coordinator is not None:
            self._coordinator.events.watchers.remove(self._happened)
            self._coordinator = None
        if self._server is not None:
            self._server.close()
        self.url = None

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, after ``close``."""
        if self._server is not None:
            self._server.join(timeout_s)

    def _happened(self, event: Event) -> None:
        if event.kind == "worker failed" and self._coordinator is not None:
            self._keep_failures(self._coordinator.job)
        if self._snapshots is not None:
            self._snapshots.changed()

    def _keep_failures(self, job: Job) -> None:
        for each in job.ending.latest_failures(MAX_FAILURES):
            self._failures.setdefault((each.rank, each.at_us), each)
        for oldest in list(self._failures)[:-MAX_FAILURES]:
            del self._failures[oldest]

    def _take(self) -> Snapshot | None:
        status, coordinator = self._status(), self._coordinator
        if status is None or coordinator is None:
            return None
        self._keep_failures(coordinator.job)  # also of workers that were to end, which no event tells
        history = coordinator.events.history
        if self._began_at is None and (first := history.between(1, 1)):
            self._began_at = first[0].at
        return Snapshot(
            status=status,
            events=tuple(history.latest(MAX_EVENTS)),
            last_number=coordinator.events.num_recorded,
            counts=dict(history.counts),
            began_at=self._began_at,
            failures=shown_failures(self._failures.values()),
            curves=coordinator.trainings.curves(),
        )

"""What the page shows of a job at one moment. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from ...wire.messages import Json, to_json
from ...wire.shortened import end
from ..job.failure import WorkerFailure
from ..job.history import Event
from ..job.status import JobStatus

MAX_LINES = 40
MAX_TRACEBACK = 20_000  # characters, from its end, where the error stands


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that failed. ``at``: seconds since the epoch. ``last_lines``: what it wrote, if it has no traceback."""

    rank: int
    hostname: str
    pid: int
    at: float
    text: str
    traceback: str
    last_lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """``began_at``: when the job began, None if nobody knows any more. ``failures``: the last ones, the newest last.

    ``events``: the last ones; ``last_number``: the number of the last one that there was.
    """

    status: JobStatus
    events: tuple[Event, ...]
    last_number: int
    counts: Mapping[str, int]
    began_at: float | None = None
    failures: tuple[Failure, ...] = ()
    curves: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """The loss of each training: steps and values."""

    @cached_property
    def status_json(self) -> str:
        """The status, as ``multiworld status --json`` prints it; only the readers' threads ask for it."""
        return json.dumps(asdict(self.status), separators=(",", ":"))

    @cached_property
    def shown_json(self) -> str:
        """What the page shows of the status, as it is sent."""
        return json.dumps(self._shown, separators=(",", ":"))

    @cached_property
    def failures_json(self) -> str:
        """The failures as they are sent."""
        return json.dumps([asdict(each) for each in self.failures], separators=(",", ":"))

    @cached_property
    def trainings_json(self) -> str:
        """How the trainings stand, as it is sent."""
        return json.dumps(self._trainings, separators=(",", ":"))

    @cached_property
    def remote_json(self) -> str:
        """How the nodes of remote tensors stand, as it is sent."""
        return json.dumps(self._remote, separators=(",", ":"))

    @property
    def _remote(self) -> Json:
        return None if self.status.remote is None else asdict(self.status.remote)

    @property
    def _trainings(self) -> list[Json]:
        return [
            {**asdict(each), "curve": [[step, _short(value)] for step, value in self.curves.get(each.name, ())]}
            for each in self.status.trainings
        ]

    @property
    def _shown(self) -> Mapping[str, Json]:
        """The status, and since when the job runs."""
        return {**asdict(replace(self.status, trainings=(), remote=None)), "began_at": self.began_at}

    @property
    def first(self) -> Mapping[str, Json]:
        """What the page shows before the first event comes, ready for JSON."""
        failures = [asdict(each) for each in self.failures]
        events = [to_json(event) for event in self.events]
        return {
            "status": self._shown,
            "failures": failures,
            "events": events,
            "trainings": self._trainings,
            "remote": self._remote,
        }

    def events_since(self, number: int) -> tuple[Event, ...]:
        """Return those with higher numbers, as far as they are kept."""
        return tuple(event for event in self.events if event.number > number)


def shown_failures(failures: Iterable[WorkerFailure]) -> tuple[Failure, ...]:
    """Return what is shown of them."""
    return tuple(
        Failure(
            rank=each.rank,
            hostname=each.hostname,
            pid=each.pid,
            at=round(each.at_us / 1e6, 3),
            text=each.text,
            traceback=end(each.traceback or "", MAX_TRACEBACK),
            last_lines=each.last_lines[-MAX_LINES:],
        )
        for each in failures
    )


def _short(value: float) -> float:
    """Return a value with as many digits as a picture needs."""
    return float(f"{value:.5g}")

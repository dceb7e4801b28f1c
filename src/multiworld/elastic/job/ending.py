"""Decide how a job ends: by which failures, or by which signal. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...process.signal_names import signal_name
from .actions import Outcome
from .failure import WorkerFailure, in_causal_order

MAX_FAILURES = 256  # every host hears of the first ones at the end
INCIDENT_S = 30.0  # failures this close to the last one may have caused it


class Ending:
    """What has happened that may end one job."""

    def __init__(self, *, signum: int | None = None, given_up: str = "") -> None:
        self.signum = signum
        """The signal by which the job was asked to end."""
        self.given_up = given_up
        """Why the job was given up, if it was."""
        self._failures: list[tuple[float, WorkerFailure]] = []

    @property
    def failures(self) -> list[WorkerFailure]:
        """What is known of the workers that failed, the last one last."""
        return [failure for _, failure in self._failures]

    def latest_failures(self, number: int) -> list[WorkerFailure]:
        return [failure for _, failure in self._failures[-number:]]

    @property
    def has_begun(self) -> bool:
        return self.signum is not None or bool(self.given_up)

    def note(self, failure: WorkerFailure | None, now: float) -> None:
        if failure is not None:
            self._failures.append((now, failure))

    def interrupt(self, signum: int) -> None:
        self.signum = signum
        self._failures.clear()  # what has been cured is not why it ends

    def give_up(self, reason: str, now: float) -> None:
        self.given_up = reason
        self._failures = [(at, failure) for at, failure in self._failures if now - at <= INCIDENT_S]

    def outcome(self, *, all_succeeded: bool) -> Outcome:
        failures = tuple(self.failures)
        if len(failures) > MAX_FAILURES:
            failures = tuple(in_causal_order(failures)[:MAX_FAILURES])
        if self.given_up:
            return Outcome(status=1, text=self.given_up, failures=failures)
        if self.signum is None:
            return Outcome(status=0, text="all workers have ended well")
        ended = Outcome(status=0, text=f"ended by {signal_name(self.signum)}")
        if all_succeeded:
            return replace(ended, text=f"{ended.text}: all workers have ended well")
        return replace(ended, status=128 + self.signum, failures=failures, signum=self.signum)

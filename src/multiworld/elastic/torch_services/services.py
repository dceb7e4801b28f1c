"""What torchrun's agent does beside its workers, if variables or the program ask for it: timers, health and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...wire.progress.thread import ProgressThread
from ..job.actions import Outcome
from ..job.options import JobOptions
from .health_check import check_health
from .metrics import JobMetrics
from .timers import OverrunTimer, watch_timers

logger = logging.getLogger(__name__)

HANDLER_S = 1.0  # for the last that a slow handler of metrics is told


class TorchServices:
    """Nothing of it exists that was not asked for."""

    def __init__(
        self,
        loop: ProgressThread,
        options: JobOptions,
        variables: Mapping[str, str],
        on_overrun: Callable[[OverrunTimer], None],
    ) -> None:
        """``on_overrun`` is called on another thread. Raises ValueError for what cannot be as the variables say."""
        self._timers = watch_timers(variables, options.run_id, on_overrun)
        try:
            others = [] if self._timers is None else [self._timers.alive_at_s]
            self._health = check_health(variables, loop, others)
        except BaseException as error:
            if self._timers is not None:
                self._timers.close()
            if isinstance(error, Exception):
                raise ValueError(f"the health check cannot be served: {error}") from error
            raise
        self.metrics = JobMetrics(options.role, options.budget.max_restarts if options.budget is not None else 0)

    @property
    def variables(self) -> dict[str, str]:
        """What workers must be told."""
        return {} if self._timers is None else self._timers.variables

    def close(self, outcome: Outcome) -> None:
        """The job is over. Not on the progress thread: it waits, for a bounded time but for a user's health server."""
        if self._timers is not None:
            self._timers.close()
        if self._health is not None:
            try:
                self._health.close()
            except Exception:  # the user's own
                logger.exception("the health check's server cannot be stopped")
        interrupted = bool(outcome.status) and (outcome.signum is not None or not outcome.failures)
        self.metrics.ended(failed=bool(outcome.status), interrupted=interrupted)
        self.metrics.close(HANDLER_S)

"""What torchrun's agent tells a handler of ``torch.distributed.elastic.metrics``, told by this one."""

from __future__ import annotations

import logging
import queue
import threading
import time

from torch.distributed.elastic.metrics import initialize_metrics
from torch.distributed.elastic.metrics.api import MetricsConfig, NullMetricHandler, getStream, put_metric

logger = logging.getLogger(__name__)

GROUP = "torchelastic"
MAX_WAITING = 1000


class JobMetrics:
    """Any thread may call; the handler is called on a thread of its own, and there is none without a handler."""

    def __init__(self, role: str, max_restarts: int) -> None:
        initialize_metrics(MetricsConfig({}))  # does nothing but in a torch that was built with more
        self._role, self._max_restarts = role, max_restarts
        self._restarts: int | None = None
        self._began_at = time.monotonic()
        self._values: queue.Queue[tuple[str, int] | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        if not isinstance(getStream(GROUP).handler, NullMetricHandler):
            self._thread = threading.Thread(target=self._hand_on, name="multiworld-metrics", daemon=True)
            self._thread.start()

    def worker_started(self, restarts: int) -> None:
        """``restarts``: how often its rank was started again so far."""
        self._restarts = max(restarts, self._restarts or 0)
        self._state("healthy")

    def worker_failed(self) -> None:
        self._state("failed")

    def ended(self, *, failed: bool, interrupted: bool) -> None:
        """The job is over. ``interrupted``: by a signal, or for a reason that is no worker's."""
        if self._restarts is not None and not interrupted:  # else no worker was started here, or its end says nothing
            if not failed:
                self._state("succeeded")
            for name, value in metrics_of_run(self._restarts, self._max_restarts, failed=failed).items():
                self._put(f"workers.{self._role}.{name}", value)
        self._put(f"SimpleElasticAgent.run.{'failure' if interrupted else 'success'}", 1)
        self._put("SimpleElasticAgent.run.duration.ms", int((time.monotonic() - self._began_at) * 1000))

    def close(self, timeout_s: float) -> None:
        """Wait so long for a slow handler. Idempotent."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                self._values.put(None, timeout=timeout_s)
            except queue.Full:
                return
            thread.join(timeout_s)

    def _state(self, state: str) -> None:
        remaining = max(0, self._max_restarts - (self._restarts or 0))
        self._put(f"workers.{self._role}.remaining_restarts", remaining)
        self._put(f"workers.{self._role}.{state}", 1)

    def _put(self, name: str, value: int) -> None:
        if self._thread is not None:
            try:
                self._values.put_nowait((name, value))
            except queue.Full:
                logger.debug("the metrics handler is too slow: %s is dropped", name)

    def _hand_on(self) -> None:
        while (item := self._values.get()) is not None:
            try:
                put_metric(*item, GROUP)
            except Exception:  # the user's own
                logger.exception("the metrics handler failed at %s", item[0])


def metrics_of_run(restarts: int, max_restarts: int, *, failed: bool) -> dict[str, int]:
    """Return what torchrun counts of one run. Pure. Flakiness: how much of the restarts was used up, in percent."""
    remaining = max(0, max_restarts - restarts)
    return {
        "flakiness": 100 if failed else int(100.0 - 100.0 * (remaining + 1) / (max_restarts + 1)),
        "run_total": 1,
        "run_success_with_retries": int(not failed and restarts > 0),
        "run_success_no_retries": int(not failed and restarts == 0),
        "run_failed_with_retries": int(failed and restarts > 0),
        "run_failed_no_retries": int(failed and restarts == 0),
    }

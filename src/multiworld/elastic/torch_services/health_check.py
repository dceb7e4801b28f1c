"""The health check that torchrun's agent offers at ``TORCHELASTIC_HEALTH_CHECK_PORT``, for this agent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from ...wire.progress.thread import ProgressThread

logger = logging.getLogger(__name__)

PORT_VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
TIMEOUT_S = 60  # what torchrun's agent names as the time after which it counts as dead
BEAT_S = 1.0


def check_health(
    variables: Mapping[str, str], loop: ProgressThread, others: Sequence[Callable[[], int]] = ()
) -> HealthCheck | None:
    """Have torch's health check served if the variables name a port. ``others``: when other threads were well.

    Raises what the server's ``start`` raises, which torch leaves to its users.
    """
    port = variables.get(PORT_VARIABLE)
    if port is None:
        return None
    try:
        number = int(port)
    except ValueError:  # torchrun goes on, too
        logger.warning("%s=%r is no port: no health check is served", PORT_VARIABLE, port)
        return None
    return HealthCheck(loop, number, others)


class HealthCheck:
    """Torch's server, which asks when this agent's progress thread last did something."""

    def __init__(self, loop: ProgressThread, port: int, others: Sequence[Callable[[], int]] = ()) -> None:
        from torch.distributed.elastic.agent.server import local_elastic_agent  # only for those who want it

        self._loop, self._others = loop, others
        self._beat_at_s, self._closed = int(time.time()), False
        # By the name under which torchrun's agent calls it: what was put in its place there is found here.
        self._server = local_elastic_agent.create_healthcheck_server(  # type: ignore[attr-defined]
            alive_callback=self.alive_at_s, port=port, timeout=TIMEOUT_S
        )
        self._server.start()
        loop.call_soon(self._beat)

    def alive_at_s(self) -> int:
        """Return when this agent was last known to be well: seconds since the epoch. From any thread."""
        return min([self._beat_at_s, *(alive_at_s() for alive_at_s in self._others)])

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self._server.stop()

    def _beat(self) -> None:
        if not self._closed:
            self._beat_at_s = int(time.time())
            self._loop.call_later(BEAT_S, self._beat)

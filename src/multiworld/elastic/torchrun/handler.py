"""A rendezvous handler for torchrun's agents: what they call, in terms of one of our agents."""

from __future__ import annotations

import logging
import os

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)

from ...observe.sites import is_loopback
from ...process.spawn.entrypoint import Entrypoint, EntrypointKind
from ...wire.endpoints.token import TOKEN_VARIABLE, warn_of_weakness
from ..job.agreement import plan_of
from ..job.options import JobOptions, RestartBudget, RestartPolicy
from ..rendezvous.registry import find_rendezvous
from .node import Node

logger = logging.getLogger(__name__)

ENDLESS = RestartBudget(max_restarts=1_000_000_000)  # torchrun's agents count restarts
SHUTDOWN_S = 60.0  # longer than torchrun lets workers take to end, by far


class Handler(RendezvousHandler):
    """A rendezvous as torchrun's agent uses it. Nothing is opened before ``next_rendezvous`` is called first."""

    def __init__(self, params: RendezvousParameters, kind: str) -> None:
        """``kind`` is one of our registry of rendezvous. Raises ValueError for parameters that mean nothing."""
        self._backend = params.backend
        self._options = _options(params, kind)
        plan_of(self._options)
        self._rendezvous, self._address = find_rendezvous(kind)(self._options)
        if not self._options.token and not is_loopback(self._address):
            logger.warning("%s is not set: whoever reaches this host can join the job", TOKEN_VARIABLE)
        warn_of_weakness(self._options.token or "")
        self._node: Node | None = None
        self._is_closed = False

    def get_backend(self) -> str:
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """Rank 0 of the workers serves their store, at a port of its own in each generation.

        So ``init_method="tcp://..."`` works too, and no key of a dead generation is read.
        """
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        if self._is_closed:
            raise RendezvousClosedError(f"rendezvous {self._options.run_id!r} was closed here")
        if self._node is None:
            try:
                self._node = Node(self._options, self._rendezvous, self._address)
            except OSError as error:
                raise RendezvousConnectionError(f"no agent can listen at {self._address}: {error}") from error
        return self._node.next()

    def is_closed(self) -> bool:
        return self._is_closed or (self._node is not None and self._node.is_over)

    def set_closed(self) -> None:
        self._is_closed = True
        if self._node is not None:
            self._node.end_job()

    def num_nodes_waiting(self) -> int:
        """Return 1 if all workers are to be started again: hosts wait or are lost, or their workers failed."""
        return int(self._node is not None and self._node.is_wanted)

    def get_run_id(self) -> str:
        return self._options.run_id

    def shutdown(self) -> bool:
        node, self._node = self._node, None
        self._is_closed = True
        if node is not None:
            node.close()
        return True


def _options(params: RendezvousParameters, kind: str) -> JobOptions:
    config = {name: str(value) for name, value in params.config.items() if value is not None}
    return JobOptions(
        entrypoint=Entrypoint(kind=EntrypointKind.COMMAND, target="torchrun"),
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        rdzv_backend=kind,
        rdzv_endpoint=params.endpoint,
        rdzv_config=config,
        local_addr=params.local_addr,
        restart=RestartPolicy.ALL,
        budget=ENDLESS,
        shutdown_s=SHUTDOWN_S,
        page=None,
        token=os.environ.get(TOKEN_VARIABLE) or None,
    )

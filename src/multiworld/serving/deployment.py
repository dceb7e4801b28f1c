"""A pipeline that is up, as the program sees it that deployed it: it answers, and it can be changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..channel.base import Payload
from ..model.signature import Signature
from ..wire.messages import to_json
from .control.controller import Controller
from .control.fleet.actions import FleetEvent
from .control.history import EventRecord
from .control.status import ControllerStatus
from .gateway.served import Metric
from .graph import Batch
from .ingress.answers import Report
from .ingress.ingress import Ingress
from .ingress.metrics import request_metrics
from .member.reports import GatewayStatistics


class Deployment:
    """Made by ``Pipeline.deploy``. All on its event loop.

    ``multiworld.serving.gateway.Gateway`` puts it behind HTTP.
    """

    reports = True
    """``infer`` fills in a ``report``."""

    def __init__(self, name: str, controller: Controller, ingress: Ingress, signature: Signature | None = None) -> None:
        self.name, self.signature = name, signature
        self._controller, self._ingress = controller, ingress

    def __repr__(self) -> str:
        return f"<Deployment {self.name!r}: {len(self.replicas)} replicas>"

    async def infer(
        self,
        payload: Payload,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        report: Report | None = None,
    ) -> Payload:
        """Answer a request: a tensor, or a list or dict of tensors, of any shape. See ``Ingress.infer``."""
        return await self._ingress.infer(payload, request_id=request_id, timeout_s=timeout_s, key=key, report=report)

    @property
    def replicas(self) -> list[dict[str, Any]]:
        """Each replica's id, stage, pid, host, state, version, queue, and more.

        ``cpu``: how many processors it kept busy in the last second; ``rss_bytes``, ``pss_bytes``: its memory, and that
        without what it shares with others. None: not told yet, or not by this kernel.
        """
        return [to_json(replica) for replica in self._controller.status().replicas]

    async def scale(self, stage: str, replicas: int, *, timeout_s: float | None = 60.0) -> None:
        """Have another number of replicas; returns when they serve, and those that are too many have finished."""
        await self._controller.operations.scale(stage, replicas, timeout_s=timeout_s)

    async def drain(self, replica: str, *, scale_down: bool = False, timeout_s: float | None = 60.0) -> None:
        """Let a replica finish what it has and end; another takes its place first, unless ``scale_down``."""
        await self._controller.operations.drain(replica, scale_down=scale_down, timeout_s=timeout_s)

    async def update(
        self, stage: str, weights: Mapping[str, Tensor] | str | os.PathLike[str], *, timeout_s: float | None = 300.0
    ) -> int:
        """Give a stage new weights, replica by replica, and return the number of their version.

        The old ones serve until new ones have proved themselves; if these fail, they serve on, and DeploymentError
        says why. ``weights``: what the work's ``load_state_dict`` takes, or a file that ``torch.save`` wrote.
        """
        return await self._controller.operations.update(
            stage, weights if isinstance(weights, Mapping) else os.fspath(weights), timeout_s=timeout_s
        )

    def tune(self, stage: str, batch: Batch) -> None:
        """Batch otherwise from now on."""
        self._controller.operations.tune(stage, batch_max_size=batch.max_size, batch_max_wait_s=batch.max_wait_s)

    def readiness(self) -> tuple[bool, str]:
        """Return whether a request would be answered now, and if not, what is missing."""
        status = self._controller.status()
        return status.ready, status.missing

    def on_event(self, call: Callable[[FleetEvent], None]) -> None:
        """Have each event of the deployment told from now on."""
        self._controller.on_event = call

    @property
    def events(self) -> list[FleetEvent]:
        """What happened, the oldest first; the last thousand."""
        return list(self._controller.history)

    async def lines(self, replica: str, last: int = 10) -> list[str]:
        """Return the last lines that a replica wrote, also after its end. Raises DeploymentError if it is unknown."""
        told = (await self._controller.lines(replica, last=last)).get(replica)
        return [] if told is None else list(told.lines)

    def status(self) -> dict[str, Any]:
        """Return how all stands, as JSON."""
        return {**to_json(self._controller.status()), "requests": to_json(self._ingress.statistics())}

    def current(self) -> ControllerStatus:
        """Return how all stands; of the ingress of this process, which is its only gateway, at this moment."""
        status = self._controller.status()
        own = GatewayStatistics(**vars(self._ingress.statistics()))
        return replace(status, gateways=tuple(replace(gateway, stats=own) for gateway in status.gateways))

    def happened(self, since: int = 0) -> list[EventRecord]:
        """Return what came after the first ``since`` events, as far as it is kept."""
        return self._controller.history.since(since)

    def metrics(self) -> Mapping[str, Metric | float]:
        """Return what Prometheus is to see: of the requests of this process."""
        return request_metrics(self._ingress.statistics())

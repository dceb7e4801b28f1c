"""From where a page or a terminal learns how a deployment stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..control.client import questions
from ..control.history import EventRecord
from ..control.status import ControllerStatus
from .controller_client import ControllerClient

if TYPE_CHECKING:
    from ..deployment import Deployment  # which imports torch


class StatusSource(Protocol):
    """Both questions raise MultiworldError or OSError while the controller cannot be asked, or is not understood."""

    async def status(self) -> ControllerStatus: ...

    async def events(self, since: int) -> list[EventRecord]:
        """Return what came after the first ``since`` events."""

    async def lines(self, member: str, last: int) -> list[str]:
        """Return the last lines that a member wrote."""

    def close(self) -> None:
        """Give back what it holds; idempotent."""


class DeploymentSource:
    """A deployment of this very process."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    async def status(self) -> ControllerStatus:
        """As the controller knows it, but what its own ingress counts is of this moment."""
        return self._deployment.current()

    async def events(self, since: int) -> list[EventRecord]:
        return self._deployment.happened(since)

    async def lines(self, member: str, last: int) -> list[str]:
        return await self._deployment.lines(member, last)

    def close(self) -> None:
        """It holds nothing."""


class ControllerSource:
    """A controller of another process, which may be gone for a while; ``token``: of the deployment."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._client = ControllerClient(address, token)

    async def status(self) -> ControllerStatus:
        return (await self._client.ask(questions.StatusOf(), questions.StatusTold)).status

    async def events(self, since: int) -> list[EventRecord]:
        return list((await self._client.ask(questions.EventsSince(since=since), questions.EventsTold)).events)

    async def lines(self, member: str, last: int) -> list[str]:
        told = (await self._client.ask(questions.LinesOfMembers(of=member, last=last), questions.MembersLines)).members
        return list(told[member].lines) if member in told else []

    async def gateway_metrics(self) -> questions.MetricsTold:
        return await self._client.ask(questions.MetricsOf(), questions.MetricsTold)

    def close(self) -> None:
        """End the connection to the controller."""
        self._client.close()

"""From where a page or a terminal learns how a deployment stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from ..deployment import Deployment

__all__ = ["AskingSource", "DeploymentSource", "StatusSource"]

Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class StatusSource(Protocol):
    """Both raise MultiworldError or OSError while the controller cannot be asked."""

    async def status(self) -> Mapping[str, Any]:
        """Return what ``Controller.status`` returns."""

    async def events(self, since: int) -> list[dict[str, Any]]:
        """Return what came after the first ``since`` events, as ``History.to_json`` does."""


class DeploymentSource:
    """A deployment of this very process."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    async def status(self) -> Mapping[str, Any]:
        """As the controller knows it, but what its own front counts is of this moment."""
        status = self._deployment.status()
        own = status.pop("requests")
        for gateway in status["gateways"][:1]:  # it has no other
            gateway["stats"] = own
        return status

    async def events(self, since: int) -> list[dict[str, Any]]:
        events = self._deployment.events
        first = self._deployment.status()["num_events"] - len(events)
        return [
            {"number": number, "kind": type(event).__name__, **asdict(event)}
            for number, event in enumerate(events, first + 1)
            if number > since
        ]


class AskingSource:
    """A controller elsewhere. ``ask``: sends it a request as ``control.requests`` describes, and returns the answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def status(self) -> Mapping[str, Any]:
        answer = await self._ask({"ask": "status"})
        status: Mapping[str, Any] = answer["status"]
        return status

    async def events(self, since: int) -> list[dict[str, Any]]:
        answer = await self._ask({"ask": "events", "since": since})
        return list(answer["events"])

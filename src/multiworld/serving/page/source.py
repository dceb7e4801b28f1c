"""From where a page or a terminal learns how a deployment stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from ...process.link import ControlLink
from ...wire.endpoints.addresses import show
from ...wire.endpoints.dialer import dial
from ...wire.endpoints.handshake import DialerHello
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import wait_async
from ..control.client import questions
from ..control.client.client import PURPOSE, explained, link_to_controller
from ..control.history import EventRecord
from ..control.status import ControllerStatus

if TYPE_CHECKING:
    from ..deployment import Deployment  # which imports torch

DIAL_S = 5.0

A = TypeVar("A")


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
    """A controller of another process, which may be gone for a while; ``token``: of the deployment.

    On one event loop. It is dialed when it is needed; after a loss the next question dials anew.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._address, self._token = address, token
        self._loop: ProgressThread | None = None
        self._link: ControlLink[questions.ControllerQuestion, None] | None = None

    async def status(self) -> ControllerStatus:
        return (await self._ask(questions.StatusOf(), questions.StatusTold)).status

    async def events(self, since: int) -> list[EventRecord]:
        return list((await self._ask(questions.EventsSince(since=since), questions.EventsTold)).events)

    async def lines(self, member: str, last: int) -> list[str]:
        told = (await self._ask(questions.LinesOfMembers(of=member, last=last), questions.MembersLines)).members
        return list(told[member].lines) if member in told else []

    async def gateway_metrics(self) -> questions.MetricsTold:
        return await self._ask(questions.MetricsOf(), questions.MetricsTold)

    def close(self) -> None:
        """End the connection. Another question dials again."""
        if self._link is not None:
            self._link.abort()
            self._link = None
        if self._loop is not None:
            self._loop.stop()
            self._loop = None

    async def _ask(self, question: questions.ControllerQuestion, answer: type[A]) -> A:
        """Return the answer. Raises DeploymentError."""
        with explained(show(*self._address), DIAL_S):
            if self._link is None or not self._link.is_open:
                self._link = await self._dial()
            return await wait_async(self._link.ask(question, answer))

    async def _dial(self) -> ControlLink[questions.ControllerQuestion, None]:
        if self._loop is None:
            self._loop = ProgressThread("multiworld-client")
        link, hello = link_to_controller(), DialerHello(purpose=PURPOSE)
        try:
            await wait_async(dial(self._loop, *self._address, hello, self._token.encode(), link, timeout_s=DIAL_S))
        except BaseException:
            self.close()
            raise
        return link

"""One connection to a controller elsewhere, over which it is asked again and again; dialed when it is needed."""

from __future__ import annotations

from typing import TypeVar

from ...process.link import ControlLink
from ...wire.endpoints.addresses import show
from ...wire.endpoints.dialer import dial
from ...wire.endpoints.handshake import DialerHello
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import wait_async
from ..control.client.client import PURPOSE, explained, link_to_controller
from ..control.client.questions import ControllerQuestion

DIAL_S = 5.0

A = TypeVar("A")


class ControllerClient:
    """On one event loop. After a loss the next question dials anew."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._address, self._token = address, token
        self._loop: ProgressThread | None = None
        self._link: ControlLink[ControllerQuestion, None] | None = None

    async def ask(self, question: ControllerQuestion, answer: type[A]) -> A:
        """Return the answer. Raises DeploymentError."""
        with explained(show(*self._address), DIAL_S):
            if self._link is None or not self._link.is_open:
                self._link = await self._dial()
            return await wait_async(self._link.ask(question, answer))

    def close(self) -> None:
        """End the connection. Idempotent; another question dials again."""
        if self._link is not None:
            self._link.abort()
            self._link = None
        if self._loop is not None:
            self._loop.stop()
            self._loop = None

    async def _dial(self) -> ControlLink[ControllerQuestion, None]:
        if self._loop is None:
            self._loop = ProgressThread("multiworld-client")
        link, hello = link_to_controller(), DialerHello(purpose=PURPOSE)
        try:
            await wait_async(dial(self._loop, *self._address, hello, self._token.encode(), link, timeout_s=DIAL_S))
        except BaseException:
            self.close()
            raise
        return link

"""The controller's door: host processes dial it to be at its service, commands to ask it something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from ...process.link import Call, ControlHello, ControlLink, on_event_loop
from ...wire.endpoints.admission import UNPROVEN_S
from ...wire.endpoints.listener import Listener, Pending, Route
from ...wire.endpoints.token import check_token
from ...wire.progress.thread import ProgressThread
from ..hosts.host import Host
from ..hosts.messages import HOST_EVENTS, HOST_ORDERS, Hello, HostEvent, HostOrder, Refused
from .client.questions import CONTROLLER_QUESTIONS, ControllerQuestion

logger = logging.getLogger(__name__)

HOST, CLIENT = "host", "client"
"""What a connection is for."""

HostLink = ControlLink[HostOrder, HostEvent]


class Reception:
    """Listens from ``start`` to ``aclose``; may be started again, at the same port, by another process.

    ``on_host`` gets each host process that connects or comes back; ``on_request`` gets a command's question and
    returns the answer: what it raises refuses the question.
    """

    def __init__(
        self,
        token: str,
        *,
        on_host: Callable[[Host], None],
        on_request: Callable[[ControllerQuestion], Awaitable[object]],
        job: str = "",
    ) -> None:
        """``job``: of the deployment; a host with members of another one is told to end them before it is let in."""
        self.hosts: dict[str, Host] = {}
        """Those that are connected now, by name."""
        self._token, self._on_host, self._on_request = check_token(token), on_host, on_request
        self._job = job
        self._loop: ProgressThread | None = None
        self._listener: Listener | None = None
        self._links: set[ControlLink[HostOrder, HostEvent] | ControlLink[None, ControllerQuestion]] = set()
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> int:
        """Listen, and return the port. Raises OSError."""
        loop = ProgressThread("multiworld-reception")
        here = asyncio.get_running_loop()
        routes: dict[str, Route] = {
            HOST: partial(self._admit_host, loop, here),
            CLIENT: partial(self._admit_client, here),
        }
        try:
            self._listener = Listener(loop, *address, self._token.encode(), routes, say=logger.debug)
        except OSError:
            loop.stop()
            raise
        self._loop = loop
        return self._listener.port

    async def aclose(self) -> None:
        """Listen no more, and lose all connections. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for task in self._answering:
            task.cancel()
        loop.call_soon(self._end)
        await asyncio.to_thread(loop.stop)
        await asyncio.sleep(0)  # what the connections told at their end is heard

    def _end(self) -> None:
        """On the progress thread."""
        assert self._listener is not None
        self._listener.close()
        for link in list(self._links):
            link.abort()

    def _admit_host(self, loop: ProgressThread, here: asyncio.AbstractEventLoop, pending: Pending) -> None:
        """On the progress thread."""
        visit = _Visit(self, pending.hello(ControlHello).generation)
        link = visit.link = HostLink(
            HOST_ORDERS, HOST_EVENTS, on_message=visit.take, on_lost=lambda _: visit.lose(), deliver=on_event_loop(here)
        )
        self._links.add(link)
        pending.accept(link)
        loop.call_later(UNPROVEN_S, visit.end_if_silent)

    def _admit_client(self, here: asyncio.AbstractEventLoop, pending: Pending) -> None:
        """On the progress thread."""
        link: ControlLink[None, ControllerQuestion] = ControlLink(
            None,
            CONTROLLER_QUESTIONS,
            on_message=self._asked,
            on_lost=lambda _: self._links.discard(link),
            deliver=on_event_loop(here),
        )
        self._links.add(link)
        pending.accept(link)

    def _asked(self, question: ControllerQuestion, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(question, call))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, question: ControllerQuestion, call: Call) -> None:
        try:
            call.answer(await self._on_request(question))
        except Exception as error:
            logger.debug("the question %r failed", question, exc_info=True)
            call.refuse(str(error) or type(error).__name__, type(error).__name__)

    # ---- of a visit, on the event loop

    def let_in(self, host: Host, generation: int) -> Refused | None:
        """Take a host in that has said hello, or return why not."""
        if self._job and not {self._job}.issuperset(host.jobs):
            return Refused(reason="what runs here belongs to a deployment that is no more", outdated=True)
        before = self.hosts.get(host.name)
        if before is not None and (before.pid, before.process_space) != (host.pid, host.process_space):
            return Refused(reason=f"there is a host {host.name!r} already: process {before.pid}; use another --name")
        if before is not None:  # it came back before we saw that it was lost
            if generation and generation < before.generation:
                return Refused(reason="this connection is older than another one of this host")
            before.lose()
        self.hosts[host.name] = host
        self._on_host(host)
        return None

    def left(self, visit: _Visit) -> None:
        self._links.discard(visit.link)
        if visit.host is not None:
            if self.hosts.get(visit.host.name) is visit.host:
                del self.hosts[visit.host.name]
            visit.host.lose()


class _Visit:
    """One connection of a host process."""

    link: HostLink

    def __init__(self, reception: Reception, generation: int) -> None:
        self.host: Host | None = None
        self._reception, self._generation = reception, generation

    def take(self, event: HostEvent, call: Call) -> None:
        if self.host is not None:
            self.host.take(event)
        elif not isinstance(event, Hello):
            logger.warning("a host process must say hello first, not %s", type(event).__name__)
            self.link.abort()
        elif self.link.is_open:
            host = Host(event, self.link, self._generation)
            refused = self._reception.let_in(host, self._generation)
            if refused is None:
                self.host = host
            else:
                self.link.tell(refused)
                self.link.finish()

    def lose(self) -> None:
        self._reception.left(self)

    def end_if_silent(self) -> None:
        if self.host is None:
            self.link.abort()

"""A gateway: listens, serves, and stops without losing what it has accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from ...observe.asgi import App
from ...observe.prometheus import Family
from .app import Application
from .ending import Ending
from .endpoints.about import Gather
from .http.acceptor import Acceptor
from .http.connection import HttpConnection
from .http.room import Room
from .options import GatewayOptions
from .served import Served

BACKLOG = 1024
LAST_S = 1.0  # for what was interrupted to be answered, and for the last answers to be read
READING_TURNS = 8  # of the loop, in which what has come is read


class Gateway:
    """Serves over HTTP, on the loop in which it was started. ``async with`` starts it, and stops it at once.

    No process, signal handler or logging set-up, and threads only for large tensors; idle, it does nothing at all.
    """

    def __init__(
        self,
        served: Served,
        options: GatewayOptions | None = None,
        *,
        mounts: Mapping[str, App] | None = None,
        gather: Gather | None = None,
    ) -> None:
        """``mounts``: what answers below other paths; whoever gave them ends their streams before ``stop``.

        ``gather``: what joins its metrics with those of other gateways.
        """
        self._options = options or GatewayOptions()
        self._app = Application(served, self._options, mounts, gather=gather)
        self._app.num_connections = lambda: len(self._state.connections)
        self._state = ServerState()
        self._acceptor: Acceptor | None = None
        self.address: tuple[str, int] | None = None
        """Where it listens."""

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(0.0)

    def __repr__(self) -> str:
        where = "not listening" if self.address is None else f"{self.address[0]}:{self.address[1]}"
        return f"<Gateway {where} connections={len(self._state.connections)} requests={len(self._state.tasks)}>"

    def families(self) -> list[Family]:
        """Return its own metrics."""
        return self._app.about.families()

    def ending(self) -> Ending:
        """Return what tells of the requests that are open now, and later of what has become of them."""
        return self._app.ending()

    async def start(self) -> tuple[str, int]:
        """Listen, and return where. OSError: it cannot listen there. Once only."""
        if self._acceptor is not None:
            raise RuntimeError("this gateway has been started already")
        options = self._options
        config = Config(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=options.idle_timeout_s,  # type: ignore[arg-type]  # given to call_later
        )
        config.load()
        room = Room(self._state.connections)
        self._acceptor = Acceptor(
            lambda: HttpConnection(config, self._state, options, room=room, on_refused=self._app.counts.refused), room
        )
        self.address = await self._acceptor.start(
            options.host, options.port, backlog=BACKLOG, reuse_port=options.reuse_port
        )
        return self.address

    async def stop(self, grace_s: float = 30.0) -> None:
        """Accept no connection any more, answer what is open within ``grace_s``, and close. Idempotent.

        Meanwhile it is not ready. A request that comes on an open connection is still answered, and told that the
        connection ends; so is one whose connection waited to be accepted. What is not answered in time is answered 503,
        and interrupted. When cancelled, it closes all at once.
        """
        self._app.is_stopping = True
        if self._acceptor is None:
            return
        try:
            await self._acceptor.aclose()
            await self._all_answered(grace_s)
            self._app.interrupt_all()
            await self._answered(LAST_S)
            for connection in self._connections():
                connection.shutdown()
            await self._answered(LAST_S)
            await self._lost()  # what is left of the last answers goes out
        finally:
            for connection in self._connections():
                connection.abort()
            for task in self._state.tasks:
                task.cancel()
        await self._ended()

    async def _all_answered(self, timeout_s: float) -> None:
        """Wait also for what has come and was not read yet: it would be lost with its connection, without an answer."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            for _ in range(READING_TURNS):
                await asyncio.sleep(0)
            left_s = deadline - asyncio.get_running_loop().time()
            if not self._state.tasks or left_s <= 0:
                return
            await self._answered(left_s)

    async def _answered(self, timeout_s: float) -> None:
        """Wait until nothing is under way, or the time is over."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._state.tasks:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            await asyncio.wait(set(self._state.tasks), timeout=left_s)

    async def _ended(self) -> None:
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=LAST_S)
        await self._lost()

    async def _lost(self) -> None:
        """Wait until all connections have ended, a moment at most."""
        lost = [connection.lost for connection in self._connections()]
        if lost:
            await asyncio.wait(lost, timeout=LAST_S)

    def _connections(self) -> list[Any]:
        return list(self._state.connections)

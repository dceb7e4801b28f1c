"""Serve the page alone, where no gateway serves it: for deployments whose requests come from the program itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from uvicorn.config import Config
from uvicorn.server import ServerState

from ...observe.sites import site_rule
from ...wire.endpoints.bracketed import bracketed
from ..gateway.http.acceptor import Acceptor
from ..gateway.http.connection import HttpConnection
from ..gateway.http.room import Room
from ..gateway.options import GatewayOptions
from .app import PREFIX, PageApp
from .recorder import Recorder
from .source import StatusSource

BACKLOG = 64
MAX_CONNECTIONS = 128
LAST_S = 1.0  # for readers to be told that it ends


@asynccontextmanager
async def serve_page(
    source: StatusSource, *, host: str = "127.0.0.1", port: int = 0, token: str = ""
) -> AsyncIterator[str]:
    """Serve within the block, on its event loop, and give the page's address. ``host``: numeric.

    ``token``: what readers must show if others than this host reach that address; without one they may read nothing.
    Raises OSError where nothing can listen there.
    """
    async with Recorder(source) as recorder:
        app = PageApp(recorder, token=token, sites=site_rule(host))
        options = GatewayOptions(host=host, port=port, max_connections=MAX_CONNECTIONS)
        state = ServerState()
        config = Config(app, http="httptools", ws="none", lifespan="off", log_config=None, server_header=False)
        config.load()
        room = Room(state.connections)
        acceptor = Acceptor(lambda: HttpConnection(config, state, options, room=room), room)
        try:
            address, bound = await acceptor.start(host, port, backlog=BACKLOG)
            yield f"http://{bracketed(address)}:{bound}{PREFIX}"
        finally:
            acceptor.close()
            await recorder.aclose()
            await _end(state)


async def _end(state: ServerState) -> None:
    """End the streams, which see that the recorder is closed, and then the connections."""
    if state.tasks:
        await asyncio.wait(set(state.tasks), timeout=LAST_S)
    connections = list(state.connections)
    for connection in connections:
        connection.abort()  # type: ignore[union-attr]  # of the class that is made above
    if connections:
        await asyncio.wait([connection.lost for connection in connections], timeout=LAST_S)  # type: ignore[union-attr]

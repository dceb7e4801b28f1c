"""Accept connections as long as there are descriptors for them, and go on as soon as there are again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from ....wire.descriptors import is_out_of_descriptors
from ....wire.rate_limited_log import RateLimitedLog
from .room import Room

logger = logging.getLogger(__name__)

AT_ONCE = 64  # fewer than the descriptors in reserve: a connection is looked at only when its protocol is made
FREED_AT_ONCE = 8
PAUSE_S = 0.1


class Acceptor:
    """Listens at one address. ``factory`` makes the protocol of each connection; ``room``: what ends idle ones."""

    def __init__(self, factory: Callable[[], asyncio.Protocol], room: Room) -> None:
        self._factory, self._room = factory, room
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._say_paused = RateLimitedLog(logger.warning)

    async def start(self, host: str, port: int, *, backlog: int, reuse_port: bool = False) -> tuple[str, int]:
        """Listen, and return where. OSError: it cannot listen there."""
        server = await self._loop.create_server(
            self._factory, host, port, reuse_port=reuse_port or None, start_serving=False
        )
        try:
            for each in server.sockets:
                self._sockets.append(socket.socket(fileno=os.dup(each.fileno())))
        finally:
            server.close()
        try:
            for sock in self._sockets:
                sock.setblocking(False)
                sock.listen(backlog)
                self._loop.add_reader(sock, self._accept, sock)
        except OSError:
            self.close()
            raise
        bound: tuple[str, int] = self._sockets[0].getsockname()[:2]
        return bound

    async def aclose(self) -> None:
        """Listen no more, but take in those who wait already: with the listener the kernel would reset them."""
        for sock in self._sockets:
            while self._accept(sock):
                pass
        tasks = list(self._tasks)
        try:
            self._close_listeners()
            if tasks:
                await asyncio.wait(tasks)
        finally:
            self.close()

    def close(self) -> None:
        """Listen no more, and take in nobody. Idempotent."""
        self._close_listeners()
        for task in self._tasks:
            task.cancel()

    def _close_listeners(self) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()

    def _accept(self, listener: socket.socket) -> bool:
        """Return whether more may wait."""
        for _ in range(AT_ONCE):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return False
            except OSError as error:
                if is_out_of_descriptors(error):
                    self._pause(listener, error)
                    return False
                continue  # it has gone before it was accepted
            sock.setblocking(False)
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._factory, sock))
            self._tasks.add(task)
            task.add_done_callback(self._accepted)
        return True

    def _accepted(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a connection was gone as soon as it was accepted: %s", error)

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Free descriptors, for the callers that wait in the backlog and for the worlds of this process."""
        for _ in range(FREED_AT_ONCE):
            if not self._room.make():
                break
        self._say_paused("cannot accept connections now, trying again every %.1f s: %s", PAUSE_S, error)
        self._loop.remove_reader(listener)
        self._loop.call_later(PAUSE_S, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            self._loop.add_reader(listener, self._accept, listener)

"""The stores that this process hosts, and its connections to stores: one per address, shared by all worlds."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from functools import partial

from ...errors import HandshakeError, JoinRefusedError, StoreError
from ...store.base import StoreURL, parse_store_url
from ...store.tcp import PURPOSE, TCPStore, TCPStoreServer
from ...wire.backoff import BackOff
from ...wire.endpoints.addresses import is_address, resolve
from ...wire.endpoints.dialer import DialError, dial
from ...wire.endpoints.handshake import DialerHello
from ...wire.progress.operation import Operation, drive
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import pause, run_in_thread, wait_blocking

WILDCARDS = frozenset({"0.0.0.0", "::"})  # recognised in order to be refused
FIRST_RETRY_S = 0.01
MAX_RETRY_S = 0.25
DIAL_S = 5.0
RESOLVER = "multiworld-resolve"


class Stores:
    """Serves and dials. ``serve`` works from any thread but the progress thread; the others are step coroutines."""

    def __init__(self, loop: ProgressThread, token: bytes, host: str | None) -> None:
        self._loop, self._token, self._host = loop, token, host
        self._servers: dict[str, TCPStoreServer] = {}
        self._clients: dict[str, TCPStore] = {}
        self._lock = threading.Lock()

    def serve(self, url: str) -> str:
        """Host a store; returns its URL with the real port. Raises StoreError if that cannot be."""
        return wait_blocking(drive(self.serving(url)))

    async def serving(self, url: str) -> str:
        """The step coroutine of ``serve``."""
        parsed = parse_store_url(url)
        host = self._host if parsed.host in WILDCARDS and self._host else parsed.host
        if host in WILDCARDS:
            raise ValueError(f"store {url}: give the address that the other processes reach, or WorldManager(host=...)")
        try:
            address = host if is_address(host) else await run_in_thread(partial(resolve, host), RESOLVER)
        except OSError as error:
            raise StoreError(url, f"the name {host!r} cannot be resolved: {error.strerror or error}") from error
        started: Operation[str] = Operation()
        self._loop.call_soon(lambda: self._start(url, host, address, parsed.port, started))
        try:
            return await started
        except OSError as error:
            raise StoreError(url, why_not_served(error)) from error

    def serves(self, url: str) -> bool:
        return url in self._servers

    def stop(self, url: str) -> None:
        """Stop hosting a store, if we do. Any thread; standing worlds do not need it."""
        with self._lock:
            server = self._servers.pop(url, None)
            for alias in [alias for alias, other in self._servers.items() if other is server]:
                del self._servers[alias]
        if server is not None:
            self._loop.call_soon(server.close)

    def _start(self, url: str, host: str, address: str, port: int, started: Operation[str]) -> None:
        if started.done:  # cancelled
            return
        if url in self._servers:
            started.succeed(url)
            return
        try:
            server = TCPStoreServer(self._loop, address, port, self._token)
        except OSError as error:
            started.fail(error)
            return
        real = str(StoreURL("tcp", host, server.port))
        with self._lock:
            self._servers[real] = server
            if port:  # else the next one gets another port
                self._servers[url] = server
        if not started.succeed(real):  # cancelled in that very moment
            self.stop(real)

    async def client(
        self, url: str, world: str, timeout_s: float, on_unreachable: Callable[[DialError], None]
    ) -> TCPStore:
        """Return a connected client, trying until cancelled: the host may start later than we.

        ``on_unreachable`` hears why a try failed.
        """
        deadline = time.monotonic() + timeout_s
        back_off = BackOff(FIRST_RETRY_S, MAX_RETRY_S, random=random.random)
        parsed = parse_store_url(url)
        while True:
            client = self._clients.get(url)
            if client is not None and client.lost_reason is None:
                return client
            try:
                host = (
                    parsed.host
                    if is_address(parsed.host)
                    else await run_in_thread(partial(resolve, parsed.host), RESOLVER)
                )
            except OSError as error:
                raise JoinRefusedError(
                    world, f"store {url}: the name {parsed.host!r} cannot be resolved: {error.strerror}"
                ) from error
            fresh = TCPStore(url)
            try:
                connection = await dial(
                    self._loop,
                    host,
                    parsed.port,
                    DialerHello(purpose=PURPOSE),
                    self._token,
                    fresh,
                    timeout_s=min(DIAL_S, max(0.1, deadline - time.monotonic())),
                )
            except HandshakeError as error:
                raise JoinRefusedError(world, f"store {url} refuses: {error}") from error
            except DialError as error:
                on_unreachable(error)
                await pause(self._loop, back_off.next_s())
                continue
            fresh.attach(connection)
            existing = self._clients.get(url)
            if existing is not None and existing.lost_reason is None:  # another join was faster
                fresh.close()
                return existing
            for lost in [other for other, store in list(self._clients.items()) if store.lost_reason is not None]:
                self._clients.pop(lost, None)  # of hosts that died, perhaps for good
            self._clients[url] = fresh
            return fresh

    def drop(self, url: str) -> None:
        """The store does not answer: forget the connection, so that the next join makes a new one."""
        client = self._clients.pop(url, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        """Progress thread only."""
        for client in self._clients.values():
            client.close()
        for server in set(self._servers.values()):
            server.close()
        self._clients.clear()
        self._servers.clear()


def why_not_served(error: OSError) -> str:
    """Return what is wrong with the address of a store, and what to do."""
    advice = (
        "It is no address of this host: give one that it has"
        if error.errno == errno.EADDRNOTAVAIL
        else "Choose another port, or 0 for a free one"
    )
    return f"cannot be served here: {error.strerror or error}. {advice}"

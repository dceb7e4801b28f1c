"""A TCP relay in this process: it delays, throttles, freezes, cuts and resets what passes, and can put bytes in."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal

from .deadlines import scaled, wait_until
from .tasks import together

Path = Literal["to_server", "to_client", "both"]
"""Which way bytes go: from who connected to the target, back, or both."""

CHUNK_BYTES = 65536
THROTTLED_CHUNKS_PER_S = 50
QUEUED_CHUNKS = 64
CALL_TIMEOUT_S = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, 0 s


class Relay:
    """Listens on ``host:port`` (a free port by default) and connects each client to ``target_host:target_port``.

    The methods work from any thread, act on present and later connections, and return once they hold. A thread of its
    own moves the bytes.
    """

    def __init__(self, target_host: str, target_port: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target_host, self.target_port = target_host, target_port
        self.host, self.port = host, port
        self._ways = {"to_server": _Way(), "to_client": _Way()}
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Relay:
        self._thread.start()
        try:
            self.restore()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ends = f"{self.host}:{self.port} -> {self.target_host}:{self.target_port}"
        return f"<Relay {ends} connections={self.num_connections}>"

    @property
    def num_connections(self) -> int:
        """Connections that are open through the relay now."""
        return len(self._connections)

    @property
    def num_bytes(self) -> dict[str, int]:
        """Bytes relayed so far by direction, without injected ones."""
        return {name: way.num_bytes for name, way in self._ways.items()}

    def wait_connections(self, at_least: int = 1, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Block until so many connections are open. Raises ``TimeoutError`` after the scaled time."""
        if not wait_until(lambda: self.num_connections >= at_least, timeout_s):
            raise TimeoutError(f"{self!r}: {at_least} connections expected within {scaled(timeout_s):g} s")

    # ---- faults

    def delay(self, seconds: float, path: Path = "both") -> None:
        """Hold what comes from now on for ``seconds`` (0: no longer). Order is kept."""
        self._call(self._set(path, delay_s=seconds))

    def throttle(self, bytes_per_s: float | None, path: Path = "both") -> None:
        """Let at most so many bytes a second pass per connection; ``None`` lifts the limit."""
        self._call(self._set(path, bytes_per_s=bytes_per_s))

    def freeze(self, path: Path = "both") -> None:
        """Let nothing pass, but keep the connections: both ends see a silent peer whose host still answers."""
        self._call(self._set(path, frozen=True))

    def thaw(self, path: Path = "both") -> None:
        """End ``freeze``; what was held goes on, nothing is lost."""
        self._call(self._set(path, frozen=False))

    def cut(self) -> None:
        """Close all connections as a program does at its end, and refuse new ones until ``restore``."""
        self._call(self._cut())

    def restore(self) -> None:
        """Listen (again), on the same port."""
        self._call(self._listen())

    def reset(self) -> None:
        """Break all present connections with a TCP reset, at both ends. New ones are accepted."""
        self._call(self._end_connections(reset=True))

    def inject(self, data: bytes, path: Path) -> None:
        """Put ``data`` into the stream of every present connection, also amid a message."""
        self._call(self._inject(data, path))

    def close(self) -> None:
        """Close everything and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._call(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    # ---- on the relay's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(scaled(CALL_TIMEOUT_S))

    def _selected(self, path: Path) -> list[str]:
        if path not in ("to_server", "to_client", "both"):
            raise ValueError(f"path is {path!r}; it must be 'to_server', 'to_client' or 'both'")
        return list(self._ways) if path == "both" else [path]

    async def _set(self, path: Path, **changes: Any) -> None:
        for name in self._selected(path):
            self._ways[name].set(replace(self._ways[name].conditions, **changes))

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.host, self.port, limit=CHUNK_BYTES)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._end_connections(reset=False)

    async def _end_connections(self, *, reset: bool) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.end(reset=reset)
        if connections:
            await asyncio.wait([connection.task for connection in connections])

    async def _inject(self, data: bytes, path: Path) -> None:
        for name in self._selected(path):
            for connection in self._connections:
                if name in connection.writers:
                    connection.writers[name].write(data)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        connection.task = self._loop.create_task(self._serve(connection, reader))

    async def _serve(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(
                self.target_host, self.target_port, limit=CHUNK_BYTES
            )
            connection.writers["to_server"] = far_writer
            await together(
                self._ways["to_server"].relay(reader, far_writer),
                self._ways["to_client"].relay(far_reader, connection.writers["to_client"]),
            )
        except OSError:  # one end reset, or nobody listens at the target: the other end learns it by a reset too
            connection.reset = True
        finally:
            connection.close()
            self._connections.discard(connection)


class _Connection:
    """A client's connection and its continuation to the target, and the task that moves bytes between them."""

    task: asyncio.Task[None]

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = {"to_client": client}
        self.reset = False

    def end(self, *, reset: bool) -> None:
        self.reset = reset
        self.task.cancel()

    def close(self) -> None:
        for writer in self.writers.values():
            if self.reset:
                linger = writer.get_extra_info("socket")
                linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                writer.transport.abort()
            else:
                writer.close()


@dataclass(frozen=True)
class _Conditions:
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    frozen: bool = False


class _Way:
    """One direction of all connections, and the conditions that hold on it."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._thawed = asyncio.Event()
        self.set(_Conditions())

    def set(self, conditions: _Conditions) -> None:
        self.conditions = conditions
        if conditions.frozen:
            self._thawed.clear()
        else:
            self._thawed.set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_CHUNKS)
        await together(self._pull(reader, queue), self._push(queue, writer))

    async def _pull(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        data = b"not yet the end"
        while data:
            await self._thawed.wait()  # what is not read fills the sender's window, as with a stopped receiver
            limit = self.conditions.bytes_per_s
            data = await reader.read(CHUNK_BYTES if limit is None else max(1, int(limit / THROTTLED_CHUNKS_PER_S)))
            await queue.put((loop.time() + self.conditions.delay_s, data))

    async def _push(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._thawed.wait()
            if not data:
                writer.write_eof()
                return
            if self.conditions.bytes_per_s is not None:
                await asyncio.sleep(len(data) / self.conditions.bytes_per_s)
            self.num_bytes += len(data)  # before they go: who has received them finds them counted
            writer.write(data)
            await writer.drain()

"""Asks over HTTP, from a process of its own: ``python -m benchmarks.serving.http_client HOST PORT PATH OPTIONS``.

Connections are kept; each asks one thing after the other. It prints its figures as JSON.
"""

from __future__ import annotations

import array
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["main"]

END = b"\r\n\r\n"
LIMIT = 16 << 20
WARM_S = 0.5


class Connection:
    """One connection, on which one request is under way at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """Return the status and the answer's body."""
        self._writer.write(head)
        self._writer.write(body)
        lines = (await self._reader.readuntil(END)).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        return int(lines[0].split(" ")[1]), await self._body(headers)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self._reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return body

    def close(self) -> None:
        self._writer.close()


async def measure(host: str, port: int, path: str, options: Mapping[str, Any]) -> dict[str, float]:
    """Ask on so many connections for so long; answers are compared with (x + 1) * 2."""
    numbers = array.array("f", (float(each % 251) for each in range(options["size_bytes"] // 4)))
    body = numbers.tobytes()
    expected = array.array("f", ((each + 1) * 2 for each in numbers)).tobytes()
    shape = f"x-shape: {len(numbers)}\r\nx-dtype: float32\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/octet-stream\r\n{shape}"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    connections = [
        Connection(*await asyncio.open_connection(host, port, limit=LIMIT)) for _ in range(options["clients"])
    ]
    took: list[float] = []
    failed = 0

    async def client(connection: Connection, until: float) -> None:
        nonlocal failed
        while time.perf_counter() < until:
            began = time.perf_counter()
            status, answer = await connection.ask(head, body)
            took.append(time.perf_counter() - began)
            failed += status != 200 or answer != expected

    until = time.perf_counter() + WARM_S
    await asyncio.gather(*(client(each, until) for each in connections))
    took.clear()
    began = time.perf_counter()
    await asyncio.gather(*(client(each, began + options["seconds"]) for each in connections))
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return {"rate": len(took) / seconds, "p50_s": statistics.median(took), "lost": failed}


def main() -> int:
    host, port, path, options = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(host, int(port), path, json.loads(options)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

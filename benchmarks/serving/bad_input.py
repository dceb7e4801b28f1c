"""The scenario of requests that make no sense: each gets a clear refusal, and the service goes on."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .http_client import Connection
from .system import Deployer, Shape
from .web import free_port

__all__ = ["bad_input"]

ANSWER_S = 10.0
RAW, JSON = "application/octet-stream", "application/json"
FLAT = {"x-dtype": "float32"}
GOOD = bytes(12)
BAD: dict[str, tuple[str, dict[str, str], bytes]] = {
    "unknown dtype": ("/infer", {"content-type": RAW, "x-dtype": "float7"}, GOOD),
    "wrong shape": ("/infer", {"content-type": RAW, "x-shape": "5,5", **FLAT}, GOOD),
    "no dtype": ("/infer", {"content-type": RAW}, GOOD),
    "malformed JSON": ("/infer", {"content-type": JSON}, b'{"inputs": [1, 2'),
    "malformed npy": ("/infer", {"content-type": "application/x-npy"}, b"\x93NUMPY junk"),
    "malformed safetensors": ("/infer", {"content-type": "application/safetensors"}, b"\xff" * 64),
    "unknown content type": ("/infer", {"content-type": "text/fancy"}, GOOD),
    "unknown model": ("/v2/models/nobody/infer", {"content-type": JSON}, b"{}"),
    "unknown path": ("/nowhere", {"content-type": RAW, **FLAT}, GOOD),
    "body of 1 GB": ("/infer", {"content-type": RAW, "content-length": str(1 << 30), **FLAT}, b""),
    "too many bytes for the shape": ("/infer", {"content-type": RAW, "x-shape": "1", **FLAT}, GOOD),
}
PATIENCE_S = 1.0
STRICT: dict[str, tuple[str, dict[str, str], bytes]] = {
    "NaN where it is refused": ("/infer", {"content-type": RAW, **FLAT}, struct.pack("<3f", 0, math.nan, 0)),
    "infinity in JSON": ("/infer", {"content-type": JSON}, b'{"inputs": [0, "Infinity"]}'),
    "a client that stops amid its body": ("/infer", {"content-type": RAW, "content-length": "4000", **FLAT}, GOOD),
}
MOODS: dict[str, bytes] = {
    "a stage that raises": struct.pack("<3f", 1, 0, 0),
    "a stage that returns garbage": struct.pack("<3f", 2, 0, 0),
}
STAGE = b"moody"


async def bad_input(deploy: Deployer, _: Mapping[str, Any]) -> dict[str, float]:
    """``unclear``: answers that are no 4xx (5xx of a stage, which they name) with a text that says why.

    ``harmed``: good requests that failed afterwards.
    """
    size_bytes = len(GOOD)
    trivial = Shape(graph="trivial", size_bytes=size_bytes, has_http=True, port=free_port())
    strict = Shape(graph="moody", size_bytes=size_bytes, has_http=True, port=free_port(), patience_s=PATIENCE_S)
    moods = {name: ("/infer", {"content-type": RAW, **FLAT}, body) for name, body in MOODS.items()}
    found: Counter[str] = Counter()
    async with deploy(trivial) as system:
        await _provoke(system.url(), BAD, found)
    async with deploy(strict) as system:
        await _provoke(system.url(), STRICT, found)
        await _provoke(system.url(), moods, found, of_stage=STAGE)
    return {"requests": found["requests"], "unclear": found["unclear"], "harmed": found["harmed"]}


async def _provoke(
    url: str, bad: Mapping[str, tuple[str, dict[str, str], bytes]], found: Counter[str], of_stage: bytes = b""
) -> None:
    parts = urlsplit(url)
    host, port = str(parts.hostname), int(parts.port or 0)
    for name, (path, headers, body) in bad.items():
        status, text = await _asked(host, port, path, headers, body)
        kind = 5 if of_stage else 4
        if status // 100 != kind or not _is_clear(text) or of_stage not in text:
            found["unclear"] += 1
            print(f"  {name}: {status} {text[:200]!r}", flush=True)
        status, _answer = await _asked(host, port, "/infer", {"content-type": RAW, **FLAT}, GOOD)
        found["harmed"] += status != 200
        found["requests"] += 1


async def _asked(host: str, port: int, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Return the status, 0 for none in time, and the answer."""
    lines = {"host": host, "content-length": str(len(body)), **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    connection = Connection(*await asyncio.open_connection(host, port))
    try:
        return await asyncio.wait_for(connection.ask(head.encode(), body), ANSWER_S)
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def _is_clear(text: bytes) -> bool:
    try:
        return bool(json.loads(text))
    except ValueError:
        return False

"""The scenario of requests that make no sense: each gets a clear refusal, and the service goes on."""

from __future__ import annotations

import asyncio
import json
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
}


async def bad_input(deploy: Deployer, _: Mapping[str, Any]) -> dict[str, float]:
    """``unclear``: answers that are no 4xx with a text that says why; ``harmed``: good ones that failed afterwards."""
    unclear = harmed = 0
    async with deploy(Shape(graph="trivial", size_bytes=len(GOOD), has_http=True, port=free_port())) as system:
        url = urlsplit(system.url())
        host, port = str(url.hostname), int(url.port or 0)
        for name, (path, headers, body) in BAD.items():
            status, text = await _asked(host, port, path, headers, body)
            if not 400 <= status < 500 or not _is_clear(text):
                unclear += 1
                print(f"  {name}: {status} {text[:200]!r}", flush=True)
            status, _answer = await _asked(host, port, "/infer", {"content-type": RAW, **FLAT}, GOOD)
            harmed += status != 200
    return {"requests": len(BAD), "unclear": unclear, "harmed": harmed}


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

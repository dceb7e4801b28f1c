"""The scenario over HTTP: a client in a process of its own asks for the two trivial stages."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .system import Deployer, Shape

__all__ = ["free_port", "http"]

CLIENT = "benchmarks.serving.http_client"


async def http(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Raw float32 bodies of one size on 16 connections: ``rate``, ``p50_s``, ``lost``."""
    async with deploy(Shape(graph="trivial", size_bytes=options["size_bytes"], has_http=True, port=free_port())) as it:
        url = urlsplit(it.url())
        arguments = (str(url.hostname), str(url.port), url.path, json.dumps(dict(options)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", CLIENT, *arguments, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return dict(json.loads(out))


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

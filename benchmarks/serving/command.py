"""The scenario in which ``multiworld serve`` loses a gateway, or its controller, while clients ask over HTTP."""

from __future__ import annotations

import array
import asyncio
import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from multiworld.process.facts import catches_signal

from ..proc import descendants, exists
from .faults import until
from .figures import quantile
from .http_client import Connection
from .system import Deployer
from .web import free_port

__all__ = ["lose"]

LOCAL = "127.0.0.1"
NUM_GATEWAYS = 2
CLIENTS = 8
READY_S = 60.0
ASK_S = 5.0
LOOK_S = 0.02
PROGRAM = "import sys; from multiworld.cli.main import main; sys.exit(main())"
RETRY_S = 0.05
GIVE_UP_S = 30.0
BEFORE_S, AFTER_S = 1.0, 3.0
BODY = array.array("f", [1.0, 2.0, 3.0]).tobytes()
EXPECTED = array.array("f", [4.0, 6.0, 8.0]).tobytes()


@dataclass
class Served:
    """A running ``multiworld serve``."""

    name: str
    port: int
    process: asyncio.subprocess.Process

    async def status(self) -> dict[str, Any]:
        return await asyncio.to_thread(_status, self.name)

    async def is_whole(self, without: int = 0) -> bool:
        status = await self.status()
        members = [*status["gateways"], *status["replicas"]]
        gateways = [each for each in status["gateways"] if each["open"]]
        return bool(status["ready"]) and len(gateways) == NUM_GATEWAYS and without not in [m["pid"] for m in members]

    async def victim(self, what: str) -> int:
        status = await self.status()
        if what == "gateway":
            return int(status["gateways"][0]["pid"])
        if what == "replica":
            return int(status["replicas"][0]["pid"])
        known = {each["pid"] for each in (*status["gateways"], *status["replicas"])}
        takers = {pid for pid in descendants(self.process.pid) if catches_signal(pid, signal.SIGTERM)}
        [controller] = takers - known  # neither the guard nor the fork server
        return controller


@dataclass
class Clients:
    """Ask on connections that are made again when they break, each request with an id under which it is asked again."""

    port: int
    took: list[tuple[float, float]] = field(default_factory=list)  # when it began, and how long it took
    refused: dict[str, int] = field(default_factory=dict)
    num_retried: int = 0
    num_lost: int = 0
    num_wrong: int = 0
    stopped: bool = False

    async def ask(self, client: int) -> None:
        connection: Connection | None = None
        number = 0
        while not self.stopped:
            number += 1
            began = time.perf_counter()
            head = _head(f"{os.getpid()}-{client}-{number}")
            while True:
                try:
                    connection = connection or Connection(*await asyncio.open_connection(LOCAL, self.port))
                    status, answer = await asyncio.wait_for(connection.ask(head, BODY), GIVE_UP_S)
                except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                    if connection is not None:
                        connection.close()
                    connection = None
                else:
                    if status == 200:
                        self.num_wrong += answer != EXPECTED
                        self.took.append((began, time.perf_counter() - began))
                        break
                    text = f"{status} {answer[:120]!r}"
                    self.refused[text] = self.refused.get(text, 0) + 1
                self.num_retried += 1
                if time.perf_counter() - began > GIVE_UP_S:
                    self.num_lost += 1
                    break
                await asyncio.sleep(RETRY_S)
        if connection is not None:
            connection.close()


async def lose(_: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Kill the gateway or the controller (``what``), and then a replica, which only a controller replaces.

    ``worst_s``: the longest answer of a request that began in the three seconds after, its retries included.
    ``whole_s``: until all runs again. ``answers_refused``: answers other than 200.
    """
    clients: Clients | None = None
    async with _serving() as served:
        clients = Clients(served.port)
        asking = [asyncio.ensure_future(clients.ask(number)) for number in range(CLIENTS)]
        await asyncio.sleep(BEFORE_S)
        found: dict[str, float] = {}
        for what in (options["what"], "replica"):
            pid = await served.victim(what)
            at = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            await until(partial(_is_gone, pid))
            suffix = "" if what == options["what"] else "_replica"
            found[f"whole_s{suffix}"] = await _until_whole(served, pid)
            await asyncio.sleep(max(0.0, at + AFTER_S - time.perf_counter()))
            after = [took for began, took in clients.took if at - 1 <= began]
            found[f"worst_s{suffix}"] = max(after)
            found[f"p99_s{suffix}"] = quantile(after, 0.99)
        clients.stopped = True
        await asyncio.gather(*asking)
    for text, times in clients.refused.items():
        print(f"  {times} x {text}", flush=True)
    return {
        **found,
        "requests": len(clients.took) + clients.num_lost,
        "lost": clients.num_lost,
        "wrong": clients.num_wrong,
        "answers_refused": sum(clients.refused.values()),
        "retried": clients.num_retried,
    }


def _status(name: str) -> dict[str, Any]:
    """Return what ``multiworld serve status --json`` prints."""
    hosts = importlib.import_module("multiworld.serving.hosts")  # which the peer's interpreter does not have
    asked = importlib.import_module("multiworld.serving.control.client.questions")
    errors = importlib.import_module("multiworld.serving.errors")
    try:
        record = hosts.find_deployment(name)
        answer = hosts.ask(record.address, record.token, asked.StatusOf(), asked.StatusTold, timeout_s=ASK_S)
    except errors.DeploymentError:
        return {"ready": False, "gateways": [], "replicas": []}
    return dict(answer.status)


def _is_gone(pid: int) -> bool:
    return not exists(pid)


async def _until_whole(served: Served, without: int) -> float:
    began = time.perf_counter()
    while not await served.is_whole(without):
        if time.perf_counter() - began > READY_S:
            return float("inf")
        await asyncio.sleep(LOOK_S)
    return time.perf_counter() - began


@asynccontextmanager
async def _serving() -> AsyncIterator[Served]:
    port, name = free_port(), f"bench-{os.getpid()}"
    command = (sys.executable, "-c", PROGRAM, "serve", "benchmarks.serving.app:pipeline")
    settings = ("--port", str(port), "--gateways", str(NUM_GATEWAYS), "--name", name)
    process = await asyncio.create_subprocess_exec(*command, *settings)
    served = Served(name, port, process)
    try:
        if await _until_whole(served, 0) == float("inf"):
            raise RuntimeError(f"multiworld serve was not ready within {READY_S:g} s")
        yield served
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _head(key: str) -> bytes:
    return (
        f"POST /infer HTTP/1.1\r\nhost: {LOCAL}\r\ncontent-type: application/octet-stream\r\nx-dtype: float32\r\n"
        f"idempotency-key: {key}\r\ncontent-length: {len(BODY)}\r\n\r\n"
    ).encode()

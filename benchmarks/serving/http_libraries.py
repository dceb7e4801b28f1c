"""Which HTTP library the gateway stands on: each serves the same trivial handler, under the same load, in turn.

``python -m benchmarks.serving.http_libraries [--seconds 3] [--rounds 5] [NAME ...]``; a library that is not installed
is passed over. Every handler hands the body to a task of its own loop and awaits the answer, as the gateway does.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch

SIZES = {"4 kB": 4_000, "4 MB": 4_000_000}
CONNECTIONS = 16
START_S = 30.0
CONTENT_TYPE = "application/octet-stream"


class Adder:
    """Adds one to the body's floats, in a task of its own on the loop of the server."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[bytes, asyncio.Future[bytes]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, body: bytes) -> bytes:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((body, future))
        return await future

    async def _run(self) -> None:
        while True:
            body, future = await self._queue.get()
            tensor = torch.frombuffer(bytearray(body), dtype=torch.float32)
            future.set_result(tensor.add_(1).numpy().tobytes())


def bare_asgi(add: Adder) -> Callable[..., Awaitable[None]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = await add(bytes(body))
        length = str(len(answer)).encode()
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def starlette_app(add: Adder) -> Any:
    applications, responses, routing = map(
        importlib.import_module, ("starlette.applications", "starlette.responses", "starlette.routing")
    )

    async def infer(request: Any) -> Any:
        return responses.Response(await add(await request.body()), media_type=CONTENT_TYPE)

    return applications.Starlette(routes=[routing.Route("/infer", infer, methods=["POST"])])


def fastapi_app(add: Adder) -> Any:
    fastapi = importlib.import_module("fastapi")
    app = fastapi.FastAPI()

    async def infer(request: Any) -> Any:
        return fastapi.Response(await add(await request.body()), media_type=CONTENT_TYPE)

    infer.__annotations__ = {"request": fastapi.Request}
    app.post("/infer")(infer)
    return app


async def serve_uvicorn(app: Any, port: int, http: str) -> None:
    uvicorn = importlib.import_module("uvicorn")
    config = uvicorn.Config(app, port=port, http=http, ws="none", lifespan="off", log_config=None, access_log=False)
    await uvicorn.Server(config).serve()


async def serve_granian(app: Any, port: int, _: str) -> None:
    embed, constants = map(importlib.import_module, ("granian.server.embed", "granian.constants"))
    server = embed.Server(app, port=port, interface=constants.Interfaces.ASGINL, log_enabled=False)
    await server.serve()


async def serve_hypercorn(app: Any, port: int, _: str) -> None:
    asyncio_part, config_part = map(importlib.import_module, ("hypercorn.asyncio", "hypercorn.config"))
    config = config_part.Config()
    config.bind = [f"127.0.0.1:{port}"]
    await asyncio_part.serve(app, config)


async def serve_aiohttp(add: Adder, port: int, _: str) -> None:
    web = importlib.import_module("aiohttp.web")

    async def infer(request: Any) -> Any:
        return web.Response(body=await add(await request.read()), content_type=CONTENT_TYPE)

    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/infer", infer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def serve_gateway(_: Adder, port: int, __: str) -> None:
    gateway = importlib.import_module("multiworld.serving.gateway")
    await gateway.Gateway(AddingFront(), gateway.GatewayOptions(port=port)).start()
    await asyncio.Event().wait()


class AddingFront:
    """What the gateway asks, without a pipeline behind it."""

    name = "adder"

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[torch.Tensor, asyncio.Future[torch.Tensor]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def infer(self, payload: Any, **_: Any) -> torch.Tensor:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        future: asyncio.Future[torch.Tensor] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((payload, future))
        return await future

    def readiness(self) -> tuple[bool, str]:
        return True, ""

    def status(self) -> dict[str, Any]:
        return {}

    def metrics(self) -> dict[str, float]:
        return {}

    async def _run(self) -> None:
        while True:
            tensor, future = await self._queue.get()
            future.set_result(tensor.add_(1))


Starter = Callable[[Any, int, str], Awaitable[None]]
NAMES: dict[str, tuple[Starter, Callable[[Adder], Any], str, bool]] = {
    # how it is served, what is served, the parser of HTTP (uvicorn's), whether on uvloop
    "bare ASGI, uvicorn": (serve_uvicorn, bare_asgi, "httptools", False),
    "bare ASGI, uvicorn, uvloop": (serve_uvicorn, bare_asgi, "httptools", True),
    "bare ASGI, uvicorn, h11": (serve_uvicorn, bare_asgi, "h11", False),
    "starlette, uvicorn": (serve_uvicorn, starlette_app, "httptools", False),
    "starlette, uvicorn, uvloop": (serve_uvicorn, starlette_app, "httptools", True),
    "FastAPI, uvicorn": (serve_uvicorn, fastapi_app, "httptools", False),
    "bare ASGI, granian embedded": (serve_granian, bare_asgi, "", False),
    "bare ASGI, granian embedded, uvloop": (serve_granian, bare_asgi, "", True),
    "bare ASGI, hypercorn": (serve_hypercorn, bare_asgi, "", False),
    "aiohttp": (serve_aiohttp, lambda add: add, "", False),
    "aiohttp, uvloop": (serve_aiohttp, lambda add: add, "", True),
    "this gateway": (serve_gateway, lambda add: add, "", False),
    "this gateway, uvloop": (serve_gateway, lambda add: add, "", True),
}


def serve(name: str, port: int) -> None:
    """Serve until killed."""
    start, make, http, is_uvloop = NAMES[name]
    torch.set_num_threads(1)
    loop = importlib.import_module("uvloop").new_event_loop() if is_uvloop else asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(start(make(Adder()), port, http))


class Caller:
    """One connection that always has one request under way."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=START_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._request = request
        self.next()

    def next(self) -> None:
        self.unsent, self._head, self._left = memoryview(self._request), b"", -1
        self.began = time.perf_counter()

    def write(self) -> None:
        self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def read(self, room: memoryview) -> bool:
        """Return whether the answer is complete."""
        num_bytes = self.socket.recv_into(room)
        if num_bytes == 0:
            raise RuntimeError(f"the server closed the connection after {self._head[:200]!r}")
        if self._left < 0:
            self._head += bytes(room[:num_bytes])
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            if not self._head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"refused: {self._head[:300]!r}")
            length = self._head[:end].lower().split(b"content-length:")[1].split(b"\r\n")[0]
            num_bytes, self._left = len(self._head) - end - 4, int(length)
        self._left -= num_bytes
        return self._left == 0


@dataclass(frozen=True)
class Load:
    """What a server made of a load. ``cpu_s``: of its process per request: other work moves it least."""

    rate: float
    median_s: float
    cpu_s: float


def load(server: subprocess.Popen[str], port: int, size_bytes: int, seconds: float) -> Load:
    """Keep CONNECTIONS requests under way all the time."""
    cpu_s = cpu_time_s(server.pid)
    head = f"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\nX-Dtype: float32\r\n"
    head += f"X-Shape: {size_bytes // 4}\r\nContent-Length: {size_bytes}\r\n\r\n"
    request, room = head.encode() + bytes(size_bytes), memoryview(bytearray(1 << 20))
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        callers = [Caller(port, request) for _ in range(CONNECTIONS)]
        for caller in callers:
            selector.register(caller.socket, selectors.EVENT_WRITE, caller)
        began, now = time.perf_counter(), 0.0
        while (now := time.perf_counter()) < began + seconds:
            for key, events in selector.select(seconds):
                caller = key.data
                if events & selectors.EVENT_WRITE:
                    caller.write()
                    if not caller.unsent:
                        selector.modify(caller.socket, selectors.EVENT_READ, caller)
                elif caller.read(room):
                    latencies.append(time.perf_counter() - caller.began)
                    caller.next()
                    selector.modify(caller.socket, selectors.EVENT_WRITE, caller)
        for caller in callers:
            caller.socket.close()
    cpu_s = cpu_time_s(server.pid) - cpu_s
    num = max(1, len(latencies))
    return Load(len(latencies) / (now - began), statistics.median(latencies or [float("nan")]), cpu_s / num)


def cpu_time_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, seconds: float) -> dict[str, Load]:
    """Start a server in a process of its own and load it with each size. Raises RuntimeError if it cannot run."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name if __spec__ else "", "--serve", name, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        try:
            await_port(server, port)
            for size_bytes in SIZES.values():
                load(server, port, size_bytes, seconds / 5)
            return {label: load(server, port, size_bytes, seconds) for label, size_bytes in SIZES.items()}
        finally:
            server.kill()


def await_port(server: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            assert server.stderr is not None
            raise RuntimeError(server.stderr.read().strip().splitlines()[-1])
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"did not listen within {START_S:g} s")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(NAMES)}")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
        return
    names = list(options.names or NAMES)
    results: dict[str, list[dict[str, Load]]] = {}
    for _ in range(options.rounds):  # in turn, so that a slow minute of the machine hits all
        for name in list(names):
            try:
                results.setdefault(name, []).append(measure(name, options.seconds))
            except (RuntimeError, OSError) as error:
                print(f"{name}: passed over: {error}", file=sys.stderr)
                names.remove(name)
    print("| server | " + " | ".join(f"{label}: requests/s | p50 ms | CPU µs each" for label in SIZES) + " |")
    print("| --- |" + " --- | --- | --- |" * len(SIZES))
    for name in names:
        cells = [name]
        for label in SIZES:
            loads = [each[label] for each in results[name]]
            cells.append(f"{statistics.median(each.rate for each in loads):,.0f}")
            cells.append(f"{statistics.median(each.median_s for each in loads) * 1e3:.1f}")
            cells.append(f"{statistics.median(each.cpu_s for each in loads) * 1e6:,.0f}")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

"""A pipeline that is none, and a client that calls the gateway's application without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from multiworld.observe.asgi import App
from multiworld.serving import Signature
from multiworld.serving.gateway import GatewayOptions, Metric, Payload
from multiworld.serving.gateway.app import Application


@dataclass
class FakePipeline:
    """Answers what it is asked, by default."""

    work: Callable[[Payload], Payload] = lambda payload: payload
    error: Exception | None = None
    unready: str = ""
    name: str = "echo"
    signature: Signature | None = None
    is_slow: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
    num_cancelled: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def infer(self, payload: Payload, **asked: Any) -> Payload:
        self.calls.append({"payload": payload, **asked})
        self.started.set()
        if self.is_slow:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
        if self.error is not None:
            raise self.error
        return self.work(payload)

    def readiness(self) -> tuple[bool, str]:
        return not self.unready, self.unready

    def status(self) -> dict[str, Any]:
        return {"stages": ["a", "b"]}

    def metrics(self) -> Mapping[str, Metric | float]:
        replicas = Metric(kind="gauge", help="Replicas by stage.", samples=[({"stage": 'a"b\n'}, 2)])
        return {"replicas": replicas, "waiting": 3}


@dataclass
class StreamingPipeline(FakePipeline):
    """Answers with the payload as often as ``parts``, then fails with ``error``, if any."""

    parts: int = 3
    num_closed: int = 0
    stalls: bool = False
    reports: bool = False

    async def stream(self, payload: Payload, **asked: Any) -> AsyncIterator[Payload]:
        self.calls.append({"payload": payload, **asked})
        try:
            for _ in range(self.parts):
                yield self.work(payload)
            if self.stalls:
                self.started.set()
                await asyncio.Event().wait()
            if self.error is not None:
                raise self.error
        finally:
            self.num_closed += 1


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


class Client:
    """Calls an application of its own."""

    def __init__(
        self,
        served: FakePipeline | None = None,
        options: GatewayOptions | None = None,
        mounts: Mapping[str, App] | None = None,
    ) -> None:
        self.served = served or FakePipeline()
        self.app = Application(self.served, options or GatewayOptions(), mounts)
        self.gone = asyncio.Event()
        """Set it, and the client has disconnected."""
        self.answered = asyncio.Event()
        """Set when the head of an answer comes."""

    async def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        return await self.call(method, path, headers, [b""])

    async def post(self, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> Reply:
        """``headers``: with underscores for dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.update({"content-type": content_type, "content-length": str(len(body))})
        return await self.call("POST", path, named, [body])

    async def post_json(self, path: str, value: Any, **headers: str) -> Reply:
        return await self.post(path, orjson.dumps(value), **headers)

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], pieces: Iterable[bytes], *, stalls: bool = False
    ) -> Reply:
        """``stalls``: nothing comes after the pieces, though the body is not complete."""
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        if not stalls:
            messages[-1]["more_body"] = False
        sent: list[Any] = []

        async def receive() -> Any:
            if messages:
                return messages.pop(0)
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            self.answered.set()

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
        await self.app(scope, receive, send)
        if not sent:
            return Reply(0, {}, b"")
        start, *rest = sent
        received = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        body = b"".join(bytes(message["body"]) for message in rest)
        assert not rest[-1]["more_body"]
        if "content-length" in received:
            assert int(received["content-length"]) == len(body)
        return Reply(start["status"], received, body)

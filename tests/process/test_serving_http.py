"""The gateway on real sockets: clients that are slow, rude or gone, and a stop while requests are under way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
import torch

from multiworld.serving.gateway import Gateway, GatewayOptions, Payload
from multiworld.serving.gateway.http.connection import HttpConnection

pytestmark = pytest.mark.process

BODY = b'{"inputs":[1.0]}'
END = b"\r\n\r\n"


@dataclass
class Echo:
    """Answers at once, or when ``release`` is set."""

    is_slow: bool = False
    name: str = "echo"
    num_cancelled: int = 0
    num_calls: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def infer(self, payload: Payload, **_: Any) -> Payload:
        self.num_calls += 1
        self.began.set()
        try:
            if self.is_slow:
                await self.release.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            self.cancelled.set()
            raise
        return payload

    async def stream(self, payload: Payload, **_: Any) -> AsyncIterator[Payload]:
        try:
            while True:
                yield payload
                self.began.set()
                await self.release.wait()
        finally:
            self.cancelled.set()

    def readiness(self) -> tuple[bool, str]:
        return True, ""

    def status(self) -> dict[str, Any]:
        return {}

    def metrics(self) -> dict[str, float]:
        return {}


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = await self.reader.readuntil(END)
        first, *lines = head.decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(first.split(" ")[1]), headers, body

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer()


async def page(scope: Any, receive: Any, send: Any) -> None:
    """Something mounted that reads no bodies."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def served(echo: Echo | None = None, **options: Any) -> AsyncIterator[tuple[Gateway, Echo]]:
    """A gateway, which must leave nothing behind."""
    echo = echo or Echo()
    before = asyncio.all_tasks()
    gateway = Gateway(echo, GatewayOptions(**options), mounts={"/page": page})
    await gateway.start()
    try:
        yield gateway, echo
    finally:
        await gateway.stop(0.0)
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
    assert "connections=0 requests=0" in repr(gateway)


@contextlib.asynccontextmanager
async def connected(gateway: Gateway) -> AsyncIterator[Connection]:
    assert gateway.address is not None
    reader, writer = await asyncio.open_connection(*gateway.address)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(body: bytes = BODY, path: str = "/infer", kind: str = "application/json", **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + END + body


RAW = {"kind": "application/octet-stream", "X_Dtype": "uint8"}


async def test_one_connection_serves_many_requests_also_pipelined_in_their_order() -> None:
    async with served() as (gateway, echo), connected(gateway) as client:
        for number in range(3):
            status, headers, body = await client.ask(post(Idempotency_Key=str(number)))
            assert (status, orjson.loads(body)["outputs"], headers["x-request-id"]) == (200, [1.0], str(number))
        head = b"HEAD /healthz HTTP/1.1\r\nHost: localhost" + END
        client.writer.write(b"".join(post(Idempotency_Key=str(number)) for number in range(20)) + head)
        assert [(await client.answer())[1]["x-request-id"] for _ in range(20)] == [str(each) for each in range(20)]
        assert (await client.reader.readuntil(END)).startswith(b"HTTP/1.1 200")  # and no body follows it
        assert (await client.ask(b"GET /nowhere HTTP/1.1\r\nHost: localhost" + END))[0] == 404
        assert echo.num_calls == 23


UPGRADE: dict[str, Any] = {
    "Connection": "Upgrade, HTTP2-Settings",
    "Upgrade": "h2c",
    "HTTP2_Settings": "AAMAAABkAAQCAAAAAAIAAAAA",
}


async def test_an_offer_of_another_protocol_is_ignored() -> None:
    """As ``curl --http2`` makes it, with a body; what follows is none of its business."""
    async with served() as (gateway, echo), connected(gateway) as client:
        for number in range(2):
            status, headers, body = await client.ask(post(Idempotency_Key=str(number), **UPGRADE))
            assert (status, headers["x-request-id"]) == (200, str(number))
            assert orjson.loads(body)["outputs"] == [1.0]
        head, _, rest = post(**UPGRADE).partition(END)
        client.writer.write(head + END)
        await asyncio.wait_for(client.writer.drain(), 5)
        await asyncio.sleep(0.05)
        assert echo.num_calls == 2, "its body is still to come"
        assert (await client.ask(rest))[0] == 200
        chunked = post(b"10\r\n" + BODY + b"\r\n0\r\n\r\n", Transfer_Encoding="chunked", **UPGRADE)
        plain = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket" + END
        client.writer.write(chunked + plain + post(**UPGRADE) + post(Idempotency_Key="last"))
        answers = [await client.answer() for _ in range(4)]
        assert [status for status, _, _ in answers] == [200] * 4
        assert answers[-1][1]["x-request-id"] == "last"
        assert echo.num_calls == 6


async def test_a_head_behind_a_large_body_is_not_taken_for_a_long_one() -> None:
    async with served() as (gateway, _), connected(gateway) as client:
        large = post(bytes(150_000), **RAW)
        client.writer.write(large[:-100_000])
        await asyncio.sleep(0.05)
        client.writer.write(large[-100_000:] + post()[:30])  # in one piece, as far as that is up to this side
        await asyncio.sleep(0.05)
        client.writer.write(post()[30:])
        assert [(await client.answer())[0] for _ in range(2)] == [200, 200]


async def test_trailers_are_read_over_and_bounded() -> None:
    async with served() as (gateway, echo), connected(gateway) as client:
        chunks = b"10\r\n" + BODY + b"\r\n0\r\n"
        assert (await client.ask(post(chunks + b"a: b" + END, Transfer_Encoding="chunked")))[0] == 200
        client.writer.write(post(chunks, Transfer_Encoding="chunked"))
        status, headers, body = await client.ask(b"a: b\r\n" * 20_000)
        assert (status, headers["connection"], orjson.loads(body)["error"]["type"]) == (
            431,
            "close",
            "HeadTooLargeError",
        )
        assert echo.num_calls == 1
    async with served() as (gateway, echo), connected(gateway) as client:
        client.writer.write(post(chunks + b"a: ", Transfer_Encoding="chunked"))
        with contextlib.suppress(ConnectionError):  # it is closed before all has been written
            for _ in range(100):
                client.writer.write(b"x" * 10_000)  # one without an end
                await client.writer.drain()
        assert (await client.answer())[0] == 431
        assert echo.num_calls == 0


async def test_large_bodies_come_back_bit_for_bit_declared_and_chunked() -> None:
    data = torch.randint(0, 256, (4_000_000,), dtype=torch.uint8).numpy().tobytes()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:100], data[100:])) + b"0\r\n\r\n"
    async with served() as (gateway, _), connected(gateway) as client:
        assert (await client.ask(post(data, **RAW)))[2] == data
        assert (await client.ask(post(chunks, Transfer_Encoding="chunked", **RAW)))[2] == data


async def test_a_client_that_goes_cancels_its_request_and_those_behind_it() -> None:
    async with served(Echo(is_slow=True)) as (gateway, echo):
        async with connected(gateway) as client:
            client.writer.write(post() * 3)
            await echo.began.wait()
        await asyncio.wait_for(echo.cancelled.wait(), 5)
        assert (echo.num_calls, echo.num_cancelled) == (1, 1)


def server_side(gateway: Gateway) -> HttpConnection:
    """The only connection that there is: what it is given directly comes in exactly these pieces."""
    (connection,) = gateway._connections()
    assert isinstance(connection, HttpConnection)
    return connection


@pytest.mark.parametrize("behind", [b"", post(), post(bytes(50_000), **RAW), post()[:30], b"no HTTP" + END])
async def test_a_client_that_goes_is_noticed_after_a_large_body_and_whatever_came_behind_it(behind: bytes) -> None:
    async with served(Echo(is_slow=True)) as (gateway, echo):
        async with connected(gateway) as client:
            head, _, body = post(bytes(300_000), **RAW).partition(END)
            client.writer.write(head + END)
            while not gateway._state.tasks:  # noqa: ASYNC110 - not announced
                await asyncio.sleep(0.01)
            for piece in (body[:200_000], body[200_000:]):
                server_side(gateway).data_received(piece)
                await asyncio.sleep(0.01)
            await asyncio.wait_for(echo.began.wait(), 5)
            if behind:
                server_side(gateway).data_received(behind)
        await asyncio.wait_for(echo.cancelled.wait(), 5)
        assert (echo.num_calls, echo.num_cancelled) == (1, 1)


async def test_requests_behind_one_that_is_slow_wait_unread_when_they_are_many_or_large() -> None:
    for behind in (post() * 100, post(bytes(500_000), **RAW)):
        async with served(Echo(is_slow=True)) as (gateway, echo), connected(gateway) as client:
            client.writer.write(post())
            await asyncio.wait_for(echo.began.wait(), 5)
            connection = server_side(gateway)
            connection.data_received(behind[:400_000])
            assert not connection.transport.is_reading()
            echo.release.set()
            assert (await client.answer())[0] == 200
            if behind[400_000:]:
                connection.data_received(behind[400_000:])
            assert (await client.answer())[0] == 200


async def test_a_client_that_goes_ends_its_stream() -> None:
    async with served() as (gateway, echo):
        async with connected(gateway) as client:
            client.writer.write(post(path="/generate"))
            head = await client.reader.readuntil(END)
            assert b"text/event-stream" in head
            assert b"data: " in await client.reader.readuntil(b"\n\n")
        await asyncio.wait_for(echo.cancelled.wait(), 5)


async def test_a_stop_tells_who_reads_a_stream() -> None:
    async with served() as (gateway, echo), connected(gateway) as client:
        client.writer.write(post(path="/generate"))
        await echo.began.wait()
        await gateway.stop(0.0)
        told = await asyncio.wait_for(client.reader.read(), 5)
        assert b"event: error\ndata: " in told
        assert told.endswith(b"0\r\n\r\n")  # the answer is complete
        assert echo.cancelled.is_set()


async def test_half_a_head_behind_a_request_costs_the_request_nothing() -> None:
    async with served(Echo(is_slow=True), head_timeout_s=0.1) as (gateway, echo), connected(gateway) as client:
        client.writer.write(post() + b"POST /inf")
        await echo.began.wait()
        await asyncio.sleep(0.25)  # longer than a head may take
        echo.release.set()
        assert [(await client.answer())[0] for _ in range(2)] == [200, 408]


async def test_too_large_a_body_is_refused_at_once_and_the_client_can_read_why() -> None:
    async with served(max_body_bytes=1 << 20) as (gateway, echo):
        async with connected(gateway) as client:  # nothing of it is sent
            status, headers, _ = await client.ask(post(b"", Content_Length=str(1 << 30), **RAW))
            assert (status, headers["connection"]) == (413, "close")
        async with connected(gateway) as client:  # all of it is sent before the answer is read
            client.writer.write(post(b"", Content_Length=str(64 << 20), **RAW))
            for _ in range(64):
                client.writer.write(bytes(1 << 20))
                await client.writer.drain()
            assert (await client.answer())[0] == 413
        async with connected(gateway) as client:
            client.writer.write(post(b"", Transfer_Encoding="chunked", **RAW))
            for _ in range(4):
                client.writer.write(b"80000\r\n" + bytes(0x80000) + b"\r\n")
            assert (await client.answer())[0] == 413
        assert echo.num_calls == 0


async def test_slow_clients_are_answered_408_and_closed() -> None:
    async with served(body_timeout_s=0.2, head_timeout_s=0.2) as (gateway, _):
        slow = {"body": post(b"{", Content_Length="100"), "head": b"POST /infer HT"}
        for what, data in slow.items():
            async with connected(gateway) as client:
                assert (await client.ask(data))[0] == 408, what
                assert await asyncio.wait_for(client.reader.read(), 5) == b""
        async with connected(gateway) as client:  # says nothing at all
            assert await asyncio.wait_for(client.reader.read(), 5) == b""
        async with connected(gateway) as client:  # is quick, then stops in the middle of the second head
            assert (await client.ask(post()))[0] == 200
            assert (await client.ask(b"POST /infer HTTP/1.1\r\nHost"))[0] == 408


async def test_a_length_with_thousands_of_zeros_is_that_without_them() -> None:
    async with served() as (gateway, _), connected(gateway) as client:
        assert (await client.ask(post(Content_Length=f"{len(BODY):06000}")))[0] == 200
        assert (await client.ask(post()))[0] == 200


async def test_a_client_that_sends_slowly_but_steadily_is_served() -> None:
    async with served(body_timeout_s=0.3) as (gateway, _), connected(gateway) as client:
        client.writer.write(post(b"", Content_Length=str(len(BODY))))
        for byte in BODY:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.03)
        assert (await client.answer())[0] == 200


PAGE = b"GET /page HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked" + END


@pytest.mark.parametrize("rest", [b"1", b"8\r\nabc", b"0\r\nx: "])
async def test_a_client_whose_body_goes_on_after_its_answer_is_closed_in_time(rest: bytes) -> None:
    async with served(head_timeout_s=0.2) as (gateway, _), connected(gateway) as client:
        assert (await client.ask(PAGE))[2] == b"ok"
        client.writer.write(rest)
        assert await asyncio.wait_for(client.reader.read(), 5) == b""


async def test_a_connection_goes_on_after_a_body_that_came_later_than_its_answer() -> None:
    async with served() as (gateway, _), connected(gateway) as client:
        for _ in range(2):
            assert (await client.ask(PAGE))[2] == b"ok"
            client.writer.write(b"3\r\nabc\r\n")
            await asyncio.sleep(0.02)
            client.writer.write(b"0\r\n\r\n")
        assert (await client.ask(post()))[0] == 200


async def test_a_client_that_never_reads_its_answer_is_dropped() -> None:
    async with served(write_timeout_s=0.3) as (gateway, echo):
        assert gateway.address is not None
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, gateway.address)
            await loop.sock_sendall(client, post(bytes(30_000_000), **RAW))
            await asyncio.wait_for(echo.began.wait(), 5)
            deadline = time.monotonic() + 5
            while "connections=0 requests=0" not in repr(gateway) and time.monotonic() < deadline:  # noqa: ASYNC110 - not announced
                await asyncio.sleep(0.02)
            assert "connections=0 requests=0" in repr(gateway)


async def read_slowly(gateway: Gateway, data: bytes, *, most_s: float) -> int:
    """Ask, read 64 kB each hundredth of a second, and return how much came until the connection was closed."""
    assert gateway.address is not None
    loop = asyncio.get_running_loop()
    num_bytes, until = 0, loop.time() + most_s
    with socket.socket() as client, contextlib.suppress(ConnectionError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.setblocking(False)
        await loop.sock_connect(client, gateway.address)
        await loop.sock_sendall(client, data)
        while loop.time() < until and not (num_bytes and "connections=0" in repr(gateway)):
            num_bytes += len(await asyncio.wait_for(loop.sock_recv(client, 65536), most_s))
            await asyncio.sleep(0.01)
    return num_bytes


async def test_a_client_has_only_so_long_to_read_a_whole_answer() -> None:
    async with served(answer_total_timeout_s=0.5) as (gateway, echo):
        num_bytes = await read_slowly(gateway, post(bytes(30_000_000), **RAW), most_s=10)
        assert echo.num_calls == 1
        assert 0 < num_bytes < 30_000_000
        assert "connections=0" in repr(gateway)
        async with connected(gateway) as quick:
            assert (await quick.ask(post()))[0] == 200
            await asyncio.sleep(0.6)
            assert (await quick.ask(post()))[0] == 200, "what has been read is not late"


async def test_a_stream_of_events_may_take_longer_than_an_answer() -> None:
    async with served(answer_total_timeout_s=0.1) as (gateway, echo):
        echo.release.set()  # as many events as the client reads
        await read_slowly(gateway, post() + post(path="/generate"), most_s=1)
        assert "connections=1" in repr(gateway), "which its client has left only now"
        await asyncio.wait_for(echo.cancelled.wait(), 5)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00" + END, 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000, 431),
        (b"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1" + END, 400),
        (b"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked" + END, 400),
        (post(b"zz\r\n", Transfer_Encoding="chunked"), 400),
        (post(BODY + b"more than was declared", Content_Length=str(len(BODY))), 200),
    ],
)
async def test_what_is_no_http_is_answered_and_closed(data: bytes, expected: int) -> None:
    async with served(head_timeout_s=1.0) as (gateway, _), connected(gateway) as client:
        status, _, body = await client.ask(data)
        assert status == expected
        assert orjson.loads(body)
        rest = await asyncio.wait_for(client.reader.read(), 5)
        assert rest.startswith(b"HTTP/1.1 400") or not rest
        async with connected(gateway) as other:
            assert (await other.ask(post()))[0] == 200


async def test_connections_are_bounded() -> None:
    async with served(max_connections=2) as (gateway, _), connected(gateway) as one, connected(gateway) as two:
        assert [(await client.ask(post()))[0] for client in (one, two)] == [200, 200]
        async with connected(gateway) as three:
            status, headers, _ = await three.answer()
            assert (status, headers["retry-after"]) == (503, "1")
        assert (await one.ask(post()))[0] == 200


async def test_the_idlest_connection_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.serving.gateway.http.room.GRACE_S", 0.0)
    async with served(Echo(), max_connections=3) as (gateway, _), connected(gateway) as one, connected(gateway) as two:
        assert [(await client.ask(post()))[0] for client in (one, two, one)] == [200] * 3
        async with connected(gateway) as three, connected(gateway) as four:
            assert [(await client.ask(post()))[0] for client in (three, four)] == [200, 200]
            assert await asyncio.wait_for(two.reader.read(), 5) == b""
            assert (await one.ask(post()))[0] == 200


async def test_a_client_that_is_slow_amid_its_body_gives_way_after_all_that_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("multiworld.serving.gateway.http.room.GRACE_S", 0.0)
    async with served(max_connections=2) as (gateway, _), connected(gateway) as slow, connected(gateway) as idle:
        slow.writer.write(post(Content_Length="100", body=b"{"))
        assert (await idle.ask(post()))[0] == 200
        async with connected(gateway) as third:
            assert (await third.ask(post()))[0] == 200
            assert await asyncio.wait_for(idle.reader.read(), 5) == b""
            async with connected(gateway) as fourth:
                assert (await fourth.ask(post()))[0] == 200
                assert await asyncio.wait_for(third.reader.read(), 5) == b""
                fourth.writer.write(b"GET / HT")
                async with connected(gateway) as fifth:
                    status, _, body = await slow.answer()
                    assert (status, b"others wait for a connection" in body) == (503, True)
                    assert (await fifth.ask(post()))[0] == 200


async def test_a_request_that_is_answered_gives_way_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.serving.gateway.http.room.GRACE_S", 0.0)
    echo = Echo(is_slow=True)
    async with served(echo, max_connections=1) as (gateway, _), connected(gateway) as one:
        one.writer.write(post())
        await echo.began.wait()
        async with connected(gateway) as two:
            assert (await two.answer())[0] == 503


async def test_idle_clients_leave_descriptors_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.serving.gateway.http.room.GRACE_S", 0.0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 150
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        async with served() as (gateway, _), contextlib.AsyncExitStack() as idle:
            for _ in range(80):  # with their other ends they would take all of them
                client = await idle.enter_async_context(connected(gateway))
                assert (await client.ask(post()))[0] == 200
            assert len(os.listdir("/proc/self/fd")) < limit - 8
            async with connected(gateway) as new:
                assert (await new.ask(post()))[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_gateway_without_descriptors_frees_some_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multiworld.serving.gateway.http.room.GRACE_S", 0.0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with served() as (gateway, _), contextlib.AsyncExitStack() as idle:
        for _ in range(10):
            client = await idle.enter_async_context(connected(gateway))
            assert (await client.ask(post()))[0] == 200
        new = socket.socket()
        assert gateway.address is not None
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (new.fileno() + 1, before[1]))
            new.setblocking(False)
            await asyncio.get_running_loop().sock_connect(new, gateway.address)  # by the kernel; nobody can accept it
            reader, writer = await asyncio.open_connection(sock=new)
            assert (await Connection(reader, writer).ask(post()))[0] == 200
            writer.close()
            await writer.wait_closed()
        finally:
            new.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(caplog.records) <= 1


async def test_what_a_connection_refuses_is_counted() -> None:
    async def counted(client: Connection, status: int) -> bool:
        text = (await client.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost" + END))[2]
        return b'multiworld_http_requests_total{route="connection",code="%d"} 1\n' % status in text

    async with served(max_connections=2, head_timeout_s=1.0) as (gateway, _), connected(gateway) as one:
        assert not await counted(one, 503)
        heads = {400: b"no HTTP" + END, 431: b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000, 408: b"GET / HT"}
        for status, head in heads.items():
            async with connected(gateway) as two:
                assert (await two.ask(head))[0] == status
                assert await asyncio.wait_for(two.reader.read(), 5) == b""
            assert await counted(one, status)
        async with connected(gateway), connected(gateway) as three:
            assert (await three.answer())[0] == 503
        assert await counted(one, 503)


async def test_a_stop_answers_what_is_open_and_accepts_nothing_new() -> None:
    async with served(Echo(is_slow=True)) as (gateway, echo):
        async with connected(gateway) as busy, connected(gateway) as idle:
            assert (await idle.ask(b"GET /readyz HTTP/1.1\r\nHost: localhost" + END))[0] == 200
            busy.writer.write(post())
            await echo.began.wait()
            stopping = asyncio.create_task(gateway.stop(10.0))
            await asyncio.sleep(0)
            with pytest.raises(ConnectionError):
                async with connected(gateway):
                    pass
            status, headers, _ = await idle.ask(b"GET /readyz HTTP/1.1\r\nHost: localhost" + END)
            assert (status, headers["connection"]) == (503, "close")
            echo.release.set()
            assert (await busy.answer())[0] == 200
            await asyncio.wait_for(stopping, 5)
            assert await busy.reader.read() == b""
        assert echo.num_cancelled == 0


async def test_a_stop_answers_those_whose_connections_wait_to_be_accepted_or_read() -> None:
    async with served() as (gateway, _), connected(gateway) as known:
        assert (await known.ask(post()))[0] == 200
        assert gateway.address is not None
        waiting = [socket.create_connection(gateway.address) for _ in range(100)]  # the loop sees none of them before
        try:
            for each in waiting:
                each.sendall(post())
            known.writer.write(post())
            await gateway.stop(5.0)
            assert (await known.answer())[0] == 200
            for each in waiting:
                each.settimeout(5)
                assert each.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        finally:
            for each in waiting:
                each.close()


async def test_a_stop_lets_a_client_read_the_rest_of_its_answer() -> None:
    size = 32 << 20
    async with served() as (gateway, _), connected(gateway) as client:
        client.writer.write(post(bytes(size), kind="application/octet-stream", X_Dtype="uint8"))
        read = len(await client.reader.readexactly(1 << 16))
        while "requests=0" not in repr(gateway):  # the answer is complete, and the client has not read it yet
            read += len(await client.reader.readexactly(1 << 16))
        stopping = asyncio.create_task(gateway.stop(5.0))
        read += len(await client.reader.read())
        await stopping
        assert read > size


async def test_what_is_not_answered_within_the_grace_is_answered_503() -> None:
    async with served(Echo(is_slow=True)) as (gateway, echo), connected(gateway) as client:
        client.writer.write(post())
        await echo.began.wait()
        began = time.monotonic()
        await gateway.stop(0.1)
        assert time.monotonic() - began < 3
        assert (await client.answer())[0] == 503
        assert echo.num_cancelled == 1


async def test_a_gateway_leaves_the_process_as_it_was() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    async with served() as (gateway, _), connected(gateway) as client:
        assert (await client.ask(post()))[0] == 200
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        with pytest.raises(RuntimeError):
            await gateway.start()
    await gateway.stop(0.0)
    gc.collect()  # what was not closed says so


async def test_a_port_that_is_taken_is_an_error_of_the_start() -> None:
    async with served() as (gateway, _):
        assert gateway.address is not None
        with pytest.raises(OSError):
            await Gateway(Echo(), GatewayOptions(port=gateway.address[1])).start()

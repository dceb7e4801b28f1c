"""The floor: the same stages over raw TCP, in asyncio streams or with blocking sockets, and nothing else.

``python -m benchmarks.serving.tcp_floor KIND SCENARIO OPTIONS``: ``closed``, of the two trivial stages, or ``added``,
of the three that compute. Each process prints where it listens, and sends to the next: messages of four bytes of
length and that many of float32. No fault is survived, no message is answered for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .works import CHAIN_LENGTH, CHAIN_MODULE_S, CHAIN_SHAPE, Matmuls, add_one, times_for, times_two

__all__ = ["main"]

LENGTH = struct.Struct("<I")
CLIENTS = (1, 16)
Work = Callable[[Tensor], Tensor]
WORKS: dict[str, Work] = {"add": add_one, "mul": times_two}
TRIVIAL = ("add", "mul")
LOCAL = "127.0.0.1"
LIMIT = 16 << 20


def compute(body: bytearray | bytes, work: Callable[[Tensor], Tensor]) -> memoryview:
    """Return the bytes of what a stage makes of a message."""
    with torch.inference_mode():
        return bytes_of(work(torch.frombuffer(body, dtype=torch.float32)))


def work_of(name: str) -> Work:
    """Return a work by its name, or ``SEED:TIMES`` of a module of the chain; all take and give what is flat."""
    if name in WORKS:
        return WORKS[name]
    seed, times = map(int, name.split(":"))
    module = Matmuls(seed, times)
    return lambda x: module(x.view(CHAIN_SHAPE)).view(-1)


def chain() -> tuple[list[str], Work]:
    """Return the names of three works of 5 ms each, and what does the same in this process."""
    times = times_for(CHAIN_MODULE_S)
    names = [f"{seed}:{times}" for seed in range(CHAIN_LENGTH)]
    works = [work_of(name) for name in names]

    def direct(x: Tensor) -> Tensor:
        with torch.inference_mode():
            for work in works:
                x = work(x)
        return x

    return names, direct


def bytes_of(tensor: Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")


# ---- with asyncio streams


async def _stage_async(work: Work, next_port: int) -> None:
    _, out = await asyncio.open_connection(LOCAL, next_port)
    out.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                body = await _read(reader)
                out.write(LENGTH.pack(len(body)))
                out.write(compute(bytearray(body), work))
                await out.drain()
        over.set()

    server = await asyncio.start_server(serve, LOCAL, 0, limit=LIMIT)
    print(server.sockets[0].getsockname()[1], flush=True)
    await over.wait()


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(length)


@contextlib.asynccontextmanager
async def _asked_async(works: Sequence[str]) -> AsyncIterator[Callable[[Tensor], Awaitable[Tensor]]]:
    """Start the stages; what is given asks them."""
    waiting: deque[asyncio.Future[bytes]] = deque()
    over = asyncio.Event()

    async def answers(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                body = await _read(reader)
                waiting.popleft().set_result(body)
        over.set()

    server = await asyncio.start_server(answers, LOCAL, 0, limit=LIMIT)
    with _stages("asyncio", server.sockets[0].getsockname()[1], works) as first:
        _, out = await asyncio.open_connection(LOCAL, first)
        out.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def ask(x: Tensor) -> Tensor:
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            waiting.append(future)
            body = bytes_of(x)
            out.write(LENGTH.pack(len(body)))
            out.write(body)
            await out.drain()
            return torch.frombuffer(bytearray(await future), dtype=torch.float32)

        yield ask
        out.close()
        await over.wait()  # the stages pass the end on
    server.close()


async def _closed_async(options: Mapping[str, Any]) -> dict[str, float]:
    x = torch.randn(options["size_bytes"] // 4)
    expected = times_two(add_one(x))
    found: dict[str, float] = {}
    async with _asked_async(TRIVIAL) as ask:
        for clients in CLIENTS:
            took: list[float] = []

            async def client(until: float, took: list[float] = took) -> None:  # each round has its own list
                while time.perf_counter() < until:
                    began = time.perf_counter()
                    answer = await ask(x)
                    took.append(time.perf_counter() - began)
                    assert torch.equal(answer, expected)

            await asyncio.gather(*(client(time.perf_counter() + options["seconds"] / 10) for _ in range(clients)))
            took.clear()
            began = time.perf_counter()
            await asyncio.gather(*(client(began + options["seconds"]) for _ in range(clients)))
            found |= _figures(clients, took, began)
    return found


async def _added_async(options: Mapping[str, Any]) -> dict[str, float]:
    works, direct = chain()
    x = torch.randn(CHAIN_SHAPE).view(-1)
    expected = direct(x)
    found = _Added()
    async with _asked_async(works) as ask:
        for _ in range(options["times"]):
            began = time.perf_counter()
            answer = await ask(x)
            between = time.perf_counter()
            direct(x)
            found.took(began, between, torch.equal(answer, expected))
    return found.figures()


# ---- with blocking sockets


def _stage_blocking(work: Work, next_port: int) -> None:
    listening = socket.create_server((LOCAL, 0))
    print(listening.getsockname()[1], flush=True)
    with socket.create_connection((LOCAL, next_port)) as out:
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        source, _ = listening.accept()
        while (body := _receive(source)) is not None:
            _send(out, compute(body, work))


def _send(out: socket.socket, body: memoryview) -> None:
    sent = out.sendmsg([LENGTH.pack(len(body)), body]) - LENGTH.size
    out.sendall(body[sent:])


def _receive(source: socket.socket) -> bytearray | None:
    header = _exactly(source, LENGTH.size)
    return None if header is None else _exactly(source, LENGTH.unpack(header)[0])


def _exactly(source: socket.socket, size: int) -> bytearray | None:
    body = bytearray(size)
    view, got = memoryview(body), 0
    while got < size:
        received = source.recv_into(view[got:])
        if not received:
            return None
        got += received
    return body


@contextlib.contextmanager
def _asked_blocking(works: Sequence[str]) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Start the stages, and give what they are asked by and what they answer by."""
    with (
        socket.create_server((LOCAL, 0)) as listening,
        _stages("blocking", listening.getsockname()[1], works) as first,
        socket.create_connection((LOCAL, first)) as out,
    ):
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers, _ = listening.accept()
        with answers:
            yield out, answers


def _added_blocking(options: Mapping[str, Any]) -> dict[str, float]:
    works, direct = chain()
    x = torch.randn(CHAIN_SHAPE).view(-1)
    expected = direct(x)
    found = _Added()
    with _asked_blocking(works) as (out, answers):
        for _ in range(options["times"]):
            began = time.perf_counter()
            _send(out, bytes_of(x))
            answer = _receive(answers)
            between = time.perf_counter()
            direct(x)
            assert answer is not None
            found.took(began, between, torch.equal(torch.frombuffer(answer, dtype=torch.float32), expected))
    return found.figures()


def _closed_blocking(options: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    x = torch.randn(options["size_bytes"] // 4)
    with _asked_blocking(TRIVIAL) as (out, answers):
        for clients in CLIENTS:
            _ask_at_once(out, answers, x, clients, options["seconds"] / 10)
            began = time.perf_counter()
            found |= _figures(clients, _ask_at_once(out, answers, x, clients, options["seconds"]), began)
    return found


def _ask_at_once(out: socket.socket, answers: socket.socket, x: Tensor, clients: int, seconds: float) -> list[float]:
    """One thread sends while fewer than ``clients`` wait; this one takes the answers. Return how long each took."""
    expected, body = times_two(add_one(x)), bytes_of(x)
    room, sent_at, took = threading.Semaphore(clients), deque[float](), list[float]()
    until = time.perf_counter() + seconds
    sent = [0]

    def send() -> None:
        while time.perf_counter() < until:
            room.acquire()
            sent_at.append(time.perf_counter())
            sent[0] += 1
            _send(out, body)

    if clients == 1:
        while time.perf_counter() < until:
            began = time.perf_counter()
            _send(out, body)
            _check(_receive(answers), expected)
            took.append(time.perf_counter() - began)
        return took
    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive() or len(took) < sent[0]:
        if len(took) == sent[0]:
            time.sleep(0)
            continue
        answer = _receive(answers)
        took.append(time.perf_counter() - sent_at.popleft())
        room.release()
        _check(answer, expected)
    sender.join()
    return took


def _check(answer: bytearray | None, expected: Tensor) -> None:
    assert answer is not None
    assert torch.equal(torch.frombuffer(answer, dtype=torch.float32), expected)


# ---- both


class _Added:
    """What requests took through the stages, and by the modules in this process, in turn."""

    def __init__(self) -> None:
        self._pipeline: list[float] = []
        self._direct: list[float] = []
        self._wrong = 0

    def took(self, began: float, between: float, right: bool) -> None:
        """The stages had answered, rightly or not, at ``between``, and the modules now."""
        self._pipeline.append(between - began)
        self._direct.append(time.perf_counter() - between)
        self._wrong += not right

    def figures(self) -> dict[str, float]:
        return {
            "pipeline_s": statistics.median(self._pipeline),
            "direct_s": statistics.median(self._direct),
            "wrong": self._wrong,
        }


@contextlib.contextmanager
def _stages(kind: str, last_port: int, works: Sequence[str]) -> Iterator[int]:
    """Start the stages, and give the port of the first."""
    processes: list[subprocess.Popen[str]] = []
    port = last_port
    try:
        for work in reversed(works):
            command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "stage", kind, work, str(port)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            port = int(process.stdout.readline())
        yield port
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _figures(clients: int, took: list[float], began: float) -> dict[str, float]:
    rate = len(took) / (time.perf_counter() - began)
    return {f"rate_{clients}": rate, f"p50_s_{clients}": statistics.median(took)}


def main() -> int:
    torch.set_num_threads(1)
    if sys.argv[1] == "stage":
        kind, work, port = sys.argv[2:]
        if kind == "asyncio":
            asyncio.run(_stage_async(work_of(work), int(port)))
        else:
            _stage_blocking(work_of(work), int(port))
        return 0
    kind, scenario, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    if kind == "asyncio":
        figures = asyncio.run({"closed": _closed_async, "added": _added_async}[scenario](options))
    else:
        figures = {"closed": _closed_blocking, "added": _added_blocking}[scenario](options)
    with os.fdopen(int(os.environ["FIGURES_FD"]), "w") as out:
        json.dump(figures, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

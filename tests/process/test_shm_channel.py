"""Shared memory between processes: it is used, it is given back, nobody else gets at it, and worlds do without it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import torch

import multiworld as mw
from multiworld.channel.shared_memory.flags import PAGE_BYTES
from multiworld.channel.shared_memory.host_memory import RING_BYTES
from multiworld.testing import Crew, WorkerGroup, scaled, wait_until
from multiworld.wire.connection.frames import Kind, pack_header

pytestmark = pytest.mark.usefixtures("no_leaks")

MANY = 3_000_000  # float32: more than ring and window hold
NAME = "memfd:multiworld"


@asynccontextmanager
async def pair(backend: str = "shm") -> AsyncIterator[tuple[mw.World, mw.World]]:
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        joins = [manager.join("w", rank, 2, url, backend=backend) for rank, manager in enumerate((first, second))]
        here, there = await asyncio.gather(*joins)
        yield here, there


async def exchange(here: mw.World, there: mw.World, numel: int) -> None:
    """Send a tensor there and back."""
    sent, came = torch.arange(float(numel)), torch.empty(numel)
    back = torch.empty(numel)
    await asyncio.wait_for(asyncio.gather(here.send(sent, 1), there.recv(came, 0)), scaled(10))
    await asyncio.wait_for(asyncio.gather(there.send(came, 0), here.recv(back, 1)), scaled(10))
    assert torch.equal(back, sent)


def mappings(pid: int | str = "self") -> int:
    return Path(f"/proc/{pid}/maps").read_text().count(NAME)


def resident_bytes() -> int:
    """Return how much memory this process holds in shared mappings."""
    sections = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    return sum(
        1024 * int(match.group(1))
        for section in sections
        if NAME in section and (match := re.search(r"^Rss: +(\d+) kB", section, re.MULTILINE))
    )


async def use_memory(here: mw.World, there: mw.World) -> None:
    """Exchange large tensors until they go through memory: the first ones may not wait for it."""
    await exchange(here, there, MANY)
    await exchange(here, there, MANY)


async def test_large_tensors_go_through_memory_that_ends_with_the_world() -> None:
    files = sorted(os.listdir("/dev/shm"))
    async with pair() as (here, there):
        await exchange(here, there, 1)
        assert mappings() == 0, "a world that moves nothing large shares no memory"
        await use_memory(here, there)
        assert mappings() == 4, "each side maps its own and the other's"
        assert sorted(os.listdir("/dev/shm")) == files
        there.abort()
        await asyncio.wait_for(here.wait_broken(), scaled(5))
        assert wait_until(lambda: mappings() == 0, 5), f"{mappings()} mappings are left of a world that is over"
    assert sorted(os.listdir("/dev/shm")) == files


async def test_idle_memory_is_given_back_and_can_be_used_again() -> None:
    async with pair() as (here, there):
        await use_memory(here, there)
        await here_and_there_reduce(here, there)
        assert resident_bytes() > RING_BYTES
        left_bytes = 8 * PAGE_BYTES  # each side tells how far it is in two pages, mapped by both
        given_back = await asyncio.to_thread(wait_until, lambda: resident_bytes() <= left_bytes, 10)
        assert given_back, f"{resident_bytes()} bytes"
        await exchange(here, there, MANY)
        await here_and_there_reduce(here, there)


async def here_and_there_reduce(here: mw.World, there: mw.World) -> None:
    tensors = [torch.arange(float(MANY)), torch.ones(MANY)]
    await asyncio.gather(here.all_reduce(tensors[0]), there.all_reduce(tensors[1]))
    assert torch.equal(tensors[0], torch.arange(float(MANY)) + 1)
    assert torch.equal(tensors[0], tensors[1])


async def test_messages_nobody_receives_yet_are_in_no_other_ones_way() -> None:
    """More of them than the ring holds, each small enough to lie in it until its receive comes."""
    async with pair() as (here, there):
        await use_memory(here, there)
        count, numel = 3 * RING_BYTES // 60_000, 15_000
        sends = []
        for number in range(count):
            sends.append(asyncio.ensure_future(here.send(torch.full((numel,), float(number)), 1, tag=1)))
            await asyncio.sleep(0)
        await exchange(here, there, MANY)
        came = torch.empty(numel)
        for number in range(count):
            await asyncio.wait_for(there.recv(came, 0, tag=1), scaled(5))
            assert came[0] == came[-1] == number
        await asyncio.gather(*sends)


async def test_what_waits_for_room_keeps_its_order_and_leaves_cancelled_memory_alone() -> None:
    """Messages that lie whole in the ring, and small ones behind those that wait until they can."""
    async with pair() as (here, there):
        await use_memory(here, there)
        numel = 100_000
        count = 3 * RING_BYTES // (4 * numel)
        tensors = [torch.full((numel,), float(number)) for number in range(count)]
        last = torch.full((numel,), float(count))
        sends = [asyncio.ensure_future(here.send(tensor, 1, tag=1)) for tensor in (*tensors, last)]
        sends.append(asyncio.ensure_future(here.send(torch.tensor([7.0]), 1, tag=2)))
        await asyncio.sleep(0)
        waiting = [number for number in range(count) if not sends[number].done()]
        assert waiting
        cancelled = waiting[::2]
        for number in cancelled:
            sends[number].cancel()
        await asyncio.gather(*(sends[number] for number in cancelled), return_exceptions=True)
        for number in cancelled:
            tensors[number].fill_(-1)
        small = torch.zeros(1)
        await asyncio.wait_for(there.recv(small, 0, tag=2), scaled(10))
        assert small.item() == 7
        came: list[float] = []
        while not came or came[-1] != count:
            received = torch.empty(numel)
            await asyncio.wait_for(there.recv(received, 0, tag=1), scaled(10))
            assert received.min() == received.max(), "half of a message"
            came.append(received[0].item())
        assert came == sorted(set(came))
        assert set(range(count)) - set(cancelled) <= set(came), "one that was not cancelled is missing"
        assert -1 not in came


async def test_what_waits_in_memory_is_still_received_after_its_sender_left() -> None:
    async with pair() as (here, there):
        await use_memory(here, there)
        await here.send(torch.full((10_000,), 7.0), 1)
        await asyncio.wait_for(here.leave(), scaled(5))
        await asyncio.wait_for(there.wait_broken(), scaled(5))
        came = torch.empty(10_000)
        await there.recv(came, 0)
        assert came[0] == came[-1] == 7.0


async def test_a_leave_waits_for_the_rest_of_cancelled_sends() -> None:
    async with pair() as (here, there):
        await use_memory(here, there)
        numel = 100_000
        count = 7 * RING_BYTES // (4 * 4 * numel)  # more than the ring holds, and less than the window
        sends = [asyncio.ensure_future(here.send(torch.full((numel,), float(number)), 1)) for number in range(count)]
        await asyncio.sleep(0)
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        leaving = asyncio.ensure_future(here.leave())
        came = torch.empty(numel)
        for number in range(count):
            await asyncio.wait_for(there.recv(came, 0), scaled(5))
            assert came[0] == came[-1] == number
        await asyncio.wait_for(leaving, scaled(5))


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_without_descriptors_tensors_go_through_the_socket(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as (here, there):
        await exchange(here, there, 1)
        with no_more_descriptors(), caplog.at_level(logging.WARNING):
            await use_memory(here, there)
            await here_and_there_reduce(here, there)
        assert mappings() == 0
        assert any("cannot make shared memory: [Errno 24]" in record.getMessage() for record in caplog.records)
        await exchange(here, there, MANY)


INTRUDER = """
import os, socket, sys
os.setgid(65534), os.setuid(65534)
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(10)
    sock.connect("\\0" + sys.argv[1])
    print("answered" if sock.recv(1) else "refused")
"""


def own_socket_names() -> set[str]:
    """Return the abstract names that this process listens at; others may run these tests at the same time."""
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if os.path.lexists(each)]
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return {
        words[7][1:] for words in lines if len(words) > 7 and words[7].startswith("@multiworld-") and words[6] in inodes
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
async def test_a_process_of_another_user_is_refused() -> None:
    async with pair() as (here, there):
        names = own_socket_names()
        assert names
        for name in names:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-S", "-c", INTRUDER, name, stdout=subprocess.PIPE
            )
            output, _ = await asyncio.wait_for(process.communicate(), scaled(20))
            assert output.split() == [b"refused"]
        await exchange(here, there, MANY)


def shared(kind: Kind, meta: bytes = b"", **fields: int) -> bytes:
    return pack_header(kind, meta_bytes=len(meta), **fields) + meta


HOSTILE = {
    "a large payload of no message": shared(Kind.PAYLOAD, (1 << 20).to_bytes(8, "little"), flags=32, seq=9999),
    "a large message of no size": shared(Kind.MESSAGE, b"short", flags=32, seq=1),
    "a message that says not where it lies": shared(Kind.MESSAGE, b"short", flags=16, seq=1),
    "a message beyond the end of the memory": shared(
        Kind.MESSAGE,
        (1000).to_bytes(8, "little") + RING_BYTES.to_bytes(8, "little") + (1000).to_bytes(4, "little"),
        flags=16,
    ),
    "memory without a descriptor": shared(Kind.SHARE),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_nonsense_from_a_peer_breaks_the_world_and_nothing_else(name: str) -> None:
    async with pair() as (here, there):
        await use_memory(here, there)
        channel = here.channel
        assert channel is not None
        channel._mesh.stream(1).connection.send(HOSTILE[name])  # type: ignore[attr-defined]
        if name == "memory without a descriptor":
            await exchange(here, there, MANY)  # it is told so, and does without
        else:
            await asyncio.wait_for(there.wait_broken(), scaled(5))


def test_memory_of_killed_members_is_gone_with_them() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        crew.form("w", backend="shm")
        crew.form("others", [0, 1], backend="shm")
        for member in crew.members:
            member.call("play", world="w", kind="all_reduce", numel=MANY)
        for member in crew.members:
            member.worker.await_event("playing")
        pid = crew[0].worker.pid
        assert mappings(pid) > 0
        crew[2].worker.kill()
        crew[0].await_broken("w")
        assert wait_until(lambda: mappings(pid) == 0, 5), "a broken world keeps shared memory mapped"
        crew.check_works("others", [0, 1])

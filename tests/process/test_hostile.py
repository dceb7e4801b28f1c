"""Strangers at our ports: garbage, other protocols, silence and wrong tokens harm nothing."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from pathlib import Path

import pytest

from multiworld.testing import Crew, WorkerGroup, wait_until

pytestmark = pytest.mark.usefixtures("no_leaks")

NOISE = random.Random(1).randbytes(100_000)
STRANGERS = {
    "noise": NOISE,
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100a5010000a10303") + NOISE[:160],
    "half a word": b"M",
    "nothing": b"",
}


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports that a process listens on, of 127.0.0.1 or of all addresses."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(str(fd.readlink()))
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]


def count_descriptors(crew: Crew) -> list[int]:
    return [len(list(Path(f"/proc/{member.worker.pid}/fd").iterdir())) for member in crew.members]


def visit(port: int, words: bytes) -> None:
    """Say something to a port as a stranger would, and go away rudely."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(ConnectionError):  # being thrown out is right
            stranger.sendall(words)
            if len(words) > 1:
                stranger.settimeout(0.5)
                with contextlib.suppress(TimeoutError):
                    while stranger.recv(4096):
                        pass


@pytest.mark.parametrize("stranger", sorted(STRANGERS))
def test_a_stranger_at_any_port_of_ours_harms_nothing(stranger: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2)
        crew.form("w")
        crew.check_works("w")  # what a loop opens when it first awaits something stays
        before = count_descriptors(crew)
        ports = [port for member in crew.members for port in listening_ports(member.worker.pid)]
        assert len(ports) >= 3  # the store and a listener each
        for port in ports:
            for _ in range(3):
                visit(port, STRANGERS[stranger])
        crew.check_works("w")
        crew.form("later")
        crew.check_works("later")
        assert not any(member.is_broken("w") for member in crew.members)
        for member in crew.members:
            member.do("leave", world="later")
        assert wait_until(lambda: all(map(int.__le__, count_descriptors(crew), before)), timeout_s=15)


def test_many_silent_strangers_keep_nobody_out() -> None:
    with WorkerGroup() as workers, contextlib.ExitStack() as strangers:
        crew = Crew(workers, 2)
        for port in listening_ports(crew[0].worker.pid):
            for _ in range(100):
                strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        crew.form("w")
        crew.check_works("w")


def test_a_wrong_token_is_refused_in_time_and_the_right_one_works() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, token="open sesame")
        crew.form("w")
        intruder = Crew(workers, 1, token="open barley")[0]
        outcome = intruder.call(
            "join", world="w2", rank=0, world_size=2, store=crew.store, backend="tcp", timeout_s=5
        ).failure()
        assert outcome.error == "JoinRefusedError", outcome.message
        assert "token" in outcome.message
        assert outcome.took_s < 2
        nobody = Crew(workers, 1)[0]
        outcome = nobody.call(
            "join", world="w2", rank=0, world_size=2, store=crew.store, backend="tcp", timeout_s=5
        ).failure()
        assert outcome.error == "JoinRefusedError", outcome.message
        crew.check_works("w")
        crew.form("w2")
        crew.check_works("w2")

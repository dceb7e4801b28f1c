"""Agents that meet through a real etcd: it introduces them, and may die and return while they work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.elastic.etcd_server import EtcdServer, etcd_program
from multiworld.elastic.rendezvous.base import Address, Advice
from multiworld.elastic.rendezvous.etcd import EtcdRendezvous
from multiworld.elastic.rendezvous.etcd_client import EtcdClient
from multiworld.elastic.rendezvous.etcd_gateway import (
    EtcdAccess,
    EtcdAwayError,
    EtcdError,
    EtcdGateway,
    EtcdRefusedError,
)
from multiworld.testing import scaled, wait_until
from multiworld.wire.progress.operation import drive
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from tests import warm_programs

CONTROL = shutil.which("etcdctl")
KEY = "multiworld/job/coordinator"
WORKER = 'echo "rank $RANK of $WORLD_SIZE is $$$$"; exec sleep 100'  # in an argument, $$ stands for $

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(
        etcd_program() is None or CONTROL is None, reason="etcd is not installed: etcd-server, etcd-client"
    ),
]


class Etcd(EtcdServer):
    """A real server, and clients for it."""

    @property
    def certificate(self) -> Path:
        """What ``--auto-tls`` has made for itself."""
        return self.directory / "data" / "fixtures" / "client" / "cert.pem"

    def access(self, tls: ssl.SSLContext | None = None, **user: str) -> EtcdAccess:
        return EtcdAccess(endpoints=(("127.0.0.1", self.port),), tls=tls, timeout_s=scaled(2.0), **user)

    def client(self, tls: ssl.SSLContext | None = None, **user: str) -> EtcdClient:
        """Return a client that has been answered."""
        client = EtcdClient(EtcdGateway(self.access(tls, **user)))

        def is_there() -> bool:
            try:
                client.get(KEY)
            except EtcdAwayError:
                return False
            return True

        assert wait_until(is_there, timeout_s=20.0), self.log.read_text()
        return client

    def control(self, *arguments: str) -> None:
        command = [str(CONTROL), "--endpoints", f"127.0.0.1:{self.port}", *arguments]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "ETCDCTL_API": "3"}, timeout=30)


class Agent:
    """``multiworld run`` on what could be a host of its own. ``lines`` is what it and its workers have written."""

    def __init__(self, etcd: Etcd, *arguments: str, command: Sequence[str] = ("sh", "-c", WORKER)) -> None:
        conf = "lease_ttl=2,last_call_timeout=0.5,join_timeout=20"
        endpoint = ["--rdzv-backend", "etcd", "--rdzv-endpoint", f"127.0.0.1:{etcd.port}", "--rdzv-id", "job"]
        options = [*endpoint, "--rdzv-conf", conf, "--nnodes", "2:3", *arguments, "--no-python"]
        self.process = warm_programs.Popen(
            [sys.executable, "-m", "multiworld.run", *options, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "LOGLEVEL": "INFO"},
        )
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_line(self, *parts: str) -> str:
        """Wait until a line has all these parts, and return it."""

        def found() -> str | None:
            return next((line for line in self.lines if all(part in line for part in parts)), None)

        with self._grown:
            assert self._grown.wait_for(found, scaled(20.0)), "".join(self.lines)
            line = found()
            assert line is not None
            return line

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._grown:
                    self.lines.append(line)
                    self._grown.notify_all()


@contextmanager
def attached(etcd: Etcd, tls: ssl.SSLContext, me: Address, **user: str) -> Iterator[EtcdRendezvous]:
    loop = ProgressThread("test-agent")
    rendezvous = EtcdRendezvous(etcd.access(tls, **user), KEY, 1)
    rendezvous.attach(loop, me)
    try:
        yield rendezvous
    finally:
        rendezvous.close()
        rendezvous.wait_closed(scaled(5.0))
        loop.stop()


def look(rendezvous: EtcdRendezvous) -> Advice:
    return wait_blocking(drive(rendezvous.look(lambda address: True)))


def claim(client: EtcdClient) -> dict[str, object]:
    value = client.get(KEY).value
    return {} if value is None else dict(json.loads(value))


def worker_pid(line: str) -> int:
    return int(line.rpartition(" is ")[2])


def test_etcd_and_the_coordinator_die_and_agents_come_all_the_same(tmp_path: Path) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(Etcd(tmp_path))
        agents = [Agent(etcd), Agent(etcd)]
        for agent in agents:
            stack.callback(agent.end)
        workers = [worker_pid(agent.wait_line("of 2 is")) for agent in agents]
        client = etcd.client()
        (leader,) = [agent for agent in agents if any("this agent coordinates" in line for line in agent.lines)]
        (follower,) = [agent for agent in agents if agent is not leader]
        first = claim(client)
        assert first["term"] == 1

        etcd.kill()
        third = Agent(etcd)  # it waits for etcd
        stack.callback(third.end)
        leader.wait_line("the job goes on")  # it has tried to renew its claim, in vain
        for pid in workers:
            os.kill(pid, 0)
        etcd.start()

        survivors = [follower, third]
        for agent in (*agents, third):
            agent.wait_line("of 3 is")
        assert claim(client) == first
        assert sum("this agent coordinates" in line for agent in (*agents, third) for line in agent.lines) == 1

        leader.process.kill()
        for agent in survivors:
            agent.wait_line("g3", "of 2 is")
        assert wait_until(lambda: claim(client).get("term") == 2, timeout_s=5.0), claim(client)
        assert claim(client)["port"] != first["port"]

        survivors[0].process.send_signal(signal.SIGTERM)
        for agent in survivors:
            assert agent.process.wait(scaled(20.0)) == 128 + signal.SIGTERM
        assert claim(client) == {}  # with its owner, and no sooner


def test_an_agent_that_finds_no_etcd_says_so(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    etcd.kill()
    agent = Agent(etcd, "--rdzv-conf", "join_timeout=0.5")
    try:
        where = f"127.0.0.1:{etcd.port}"
        agent.wait_line(f"found at etcd {where} within 0.5 s; etcd at {where}: connection refused")
        assert agent.process.wait(scaled(20.0)) == 1
    finally:
        agent.end()


def _is_whole(certificate: Path) -> bool:
    """Whether etcd, which has made it, has also written all of it."""
    return certificate.exists() and "END CERTIFICATE" in certificate.read_text()


def test_a_real_etcd_with_tls_and_passwords_holds_claims_as_long_as_their_owners(tmp_path: Path) -> None:
    with Etcd(tmp_path, "--auto-tls", scheme="https") as etcd:
        assert wait_until(lambda: _is_whole(etcd.certificate), timeout_s=20.0)
        tls = ssl.create_default_context(cafile=str(etcd.certificate))
        etcd.client(tls)
        with pytest.raises(EtcdAwayError, match="does it want --rdzv-conf protocol=https"):
            EtcdClient(EtcdGateway(etcd.access())).get(KEY)
        with pytest.raises(EtcdRefusedError, match="its certificate is not accepted: self-signed certificate"):
            EtcdClient(EtcdGateway(etcd.access(ssl.create_default_context()))).get(KEY)
        control = ("--cacert", str(etcd.certificate))
        for command in ("user add root:secret", "user grant-role root root", "auth enable"):
            etcd.control(*control, *command.split())
        with pytest.raises(EtcdRefusedError, match=r"invalid user ID or password \(user 'root'\)"):
            etcd.client(tls, username="root", password="guess")
        with pytest.raises(EtcdRefusedError, match="user name is empty; give --rdzv-conf username="):
            etcd.client(tls)

        user = {"username": "root", "password": "secret"}
        client = etcd.client(tls, **user)
        one, two = Address("127.0.0.1", 1001), Address("127.0.0.1", 1002)
        with attached(etcd, tls, one, **user) as first, attached(etcd, tls, two, **user) as second:
            assert look(first) == Advice(leads=True)
            first.announce(one, 1)
            assert look(second) == Advice(call=[one])
            found = client.get(KEY)
            client.wait_change(KEY, found.seen_at, 1.5)  # longer than its lease lasts unless it is renewed
            assert client.get(KEY).changed_at == found.changed_at
            second.announce(two, 2)
            client.wait_change(KEY, found.seen_at, scaled(10.0))
            assert claim(client) == {"host": two.host, "port": two.port, "term": 2}
            assert look(first) == Advice(call=[two])
            waiting = drive(first.look(lambda address: True))
            second.withdraw()
            assert wait_blocking(waiting) == Advice(leads=True)
        with pytest.raises(EtcdError):
            etcd.client(tls, username="nobody", password="")
        assert claim(client) == {}

"""Sentinels of real processes: what they answer and to whom, and that none outlives its process."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from multiworld.world.liveness import Vital
from multiworld.world.processes import vitals
from multiworld.world.processes.sentinel import (
    DATAGRAM_BYTES,
    NONCE_BYTES,
    Sentinel,
    decode_reply,
    encode_query,
    nonce_of,
)

pytestmark = pytest.mark.process

TOKEN = b"a job token that nobody may see"
PATIENCE_S = 20.0


@contextmanager
def asking(port: int, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        yield sock


def ask(sock: socket.socket, token: bytes = TOKEN, timeout_s: float = PATIENCE_S) -> Vital | None:
    """Ask once and wait for the answer, None if none comes."""
    nonce = os.urandom(NONCE_BYTES)
    sock.settimeout(timeout_s)
    sock.send(encode_query(nonce, token))
    try:
        data = sock.recv(2048)
    except TimeoutError:
        return None
    return decode_reply(data, nonce, token)


@dataclass
class Owner:
    """A process that keeps a sentinel: it reads lines from standard input and runs them."""

    process: subprocess.Popen[str]
    port: int
    sentinel_pid: int

    def tell(self, line: str) -> str:
        """Run a line in the owner that prints one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


OWNER = """
import sys
from multiworld.world.processes.sentinel import Sentinel
sentinel = Sentinel.start("127.0.0.1", sys.stdin.buffer.readline().rstrip())
print(sentinel.port, sentinel.pid, flush=True)
for line in sys.stdin.buffer:
    exec(line)
    sys.stdout.flush()
"""


@contextmanager
def owner() -> Iterator[Owner]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(TOKEN.decode() + "\n")
            process.stdin.flush()
            port, pid = process.stdout.readline().split()
            yield Owner(process, int(port), int(pid))
        finally:
            process.kill()


@contextmanager
def watching_end_of(pid: int) -> Iterator[int]:
    descriptor = vitals.open_pidfd(pid)
    if descriptor is None:
        pytest.skip("no pidfd on this kernel")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ended(descriptor: int, within_s: float = PATIENCE_S) -> bool:
    return bool(select.select([descriptor], [], [], within_s)[0])


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    with closing(Sentinel.start("127.0.0.1", TOKEN)) as started:
        yield started


def test_a_question_asked_before_the_child_is_up_is_answered(sentinel: Sentinel) -> None:
    with asking(sentinel.port) as sock:
        assert ask(sock) is Vital.RUNNING


def test_it_serves_ipv6_too() -> None:
    try:
        started = Sentinel.start("::1", TOKEN)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with closing(started), asking(started.port, "::1") as sock:
        assert ask(sock) is Vital.RUNNING


def test_an_address_that_is_not_ours_or_not_numeric_is_refused_at_once() -> None:
    with pytest.raises(OSError):
        Sentinel.start("203.0.113.1", TOKEN)
    with pytest.raises(socket.gaierror):
        Sentinel.start("localhost", TOKEN)


def test_a_stopped_process_is_reported_stopped_and_then_running() -> None:
    with owner() as watched, asking(watched.port) as sock:
        assert ask(sock) is Vital.RUNNING
        os.kill(watched.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, watched.process.pid, os.WSTOPPED | os.WNOWAIT)
        assert ask(sock) is Vital.STOPPED
        os.kill(watched.process.pid, signal.SIGCONT)
        os.waitid(os.P_PID, watched.process.pid, os.WCONTINUED | os.WNOWAIT)
        assert ask(sock) is Vital.RUNNING


def test_stopping_or_interrupting_the_whole_process_group_leaves_the_sentinel_at_work() -> None:
    with owner() as watched, asking(watched.port) as sock:
        assert ask(sock) is Vital.RUNNING
        os.killpg(watched.process.pid, signal.SIGSTOP)  # Ctrl-Z or kill -STOP of a job
        os.waitid(os.P_PID, watched.process.pid, os.WSTOPPED | os.WNOWAIT)
        assert ask(sock) is Vital.STOPPED


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1"])
def test_no_signal_that_reaches_all_processes_ends_the_sentinel(sentinel: Sentinel, name: str) -> None:
    os.kill(sentinel.pid, getattr(signal, name))  # also before the interpreter has started
    with asking(sentinel.port) as sock:
        assert ask(sock) is Vital.RUNNING
        os.kill(sentinel.pid, getattr(signal, name))
        assert ask(sock) is Vital.RUNNING
    assert sentinel.alive


def test_a_process_that_holds_its_interpreter_lock_is_reported_running() -> None:
    with owner() as watched, asking(watched.port) as sock:
        assert (
            watched.tell("import ctypes; print('ready', flush=True); ctypes.PyDLL(None).usleep(60_000_000)") == "ready"
        )
        assert [ask(sock) for _ in range(3)] == [Vital.RUNNING] * 3


def test_strangers_and_garbage_get_no_answer(sentinel: Sentinel) -> None:
    with asking(sentinel.port) as sock:
        assert ask(sock) is Vital.RUNNING
        query = encode_query(os.urandom(NONCE_BYTES), b"another token")
        wrong = [b"", b"x", query, query[:-1], query + b"x", bytes(DATAGRAM_BYTES), os.urandom(DATAGRAM_BYTES)]
        wrong += [os.urandom(9000), b"GET / HTTP/1.1\r\n\r\n"]
        for data in wrong:
            sock.send(data)
        # Datagrams from one socket are answered in order, so the first answer belongs to this question.
        assert ask(sock) is Vital.RUNNING
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(2048)


def test_the_answer_is_no_longer_than_the_question_and_fits_only_it(sentinel: Sentinel) -> None:
    nonce = os.urandom(NONCE_BYTES)
    query = encode_query(nonce, TOKEN)
    with asking(sentinel.port) as sock:
        sock.settimeout(PATIENCE_S)
        sock.send(query)
        reply = sock.recv(2048)
    assert len(reply) <= len(query) == DATAGRAM_BYTES
    assert nonce_of(reply) == nonce
    assert decode_reply(reply, nonce, TOKEN) is Vital.RUNNING
    assert decode_reply(reply, os.urandom(NONCE_BYTES), TOKEN) is None
    assert decode_reply(reply, nonce, b"another token") is None
    assert decode_reply(query, nonce, TOKEN) is None
    for index in range(len(reply)):
        forged = bytearray(reply)
        forged[index] ^= 1
        assert decode_reply(bytes(forged), nonce, TOKEN) is None


def test_a_nonce_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes, got 15"):
        encode_query(bytes(15), TOKEN)


def test_close_leaves_no_process_and_no_descriptor() -> None:
    descriptors = sorted(os.listdir("/proc/self/fd"))
    sentinel = Sentinel.start("127.0.0.1", TOKEN)
    began = time.monotonic()
    sentinel.close()
    sentinel.close()
    assert time.monotonic() - began < 5
    assert not os.path.exists(f"/proc/{sentinel.pid}")
    assert not sentinel.alive
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_start_and_close_leave_the_signal_mask_of_the_thread_alone() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    Sentinel.start("127.0.0.1", TOKEN).close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_sentinel_started_on_a_thread_outlives_that_thread() -> None:
    started: list[Sentinel] = []
    thread = threading.Thread(target=lambda: started.append(Sentinel.start("127.0.0.1", TOKEN)))
    thread.start()
    thread.join()
    with closing(started[0]), asking(started[0].port) as sock:
        assert ask(sock) is Vital.RUNNING


def test_the_token_stands_in_no_argument_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_TOKEN", TOKEN.decode())
    with closing(Sentinel.start("127.0.0.1", TOKEN)) as sentinel, asking(sentinel.port) as sock:
        assert ask(sock) is Vital.RUNNING
        for name in ("cmdline", "environ"):
            with open(f"/proc/{sentinel.pid}/{name}", "rb") as file:
                assert TOKEN not in file.read()


def test_the_sentinel_is_small_and_holds_nothing_but_what_it_needs(sentinel: Sentinel) -> None:
    with asking(sentinel.port) as sock:
        assert ask(sock) is Vital.RUNNING
    with open(f"/proc/{sentinel.pid}/status") as file:
        own_kilobytes = next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))
    assert own_kilobytes < 8_000  # the rest is shared with other interpreters
    assert len(os.listdir(f"/proc/{sentinel.pid}/fd")) <= 5  # 0, 1, 2, the socket and the parent's pidfd
    assert os.readlink(f"/proc/{sentinel.pid}/cwd") == "/"


def test_the_sentinel_ends_when_its_process_is_killed() -> None:
    with owner() as watched, asking(watched.port) as sock, watching_end_of(watched.sentinel_pid) as sentinel_end:
        assert ask(sock) is Vital.RUNNING
        watched.process.kill()
        assert ended(sentinel_end)


def test_the_sentinel_ends_when_its_process_is_killed_at_once() -> None:
    with owner() as watched, watching_end_of(watched.sentinel_pid) as sentinel_end:
        watched.process.kill()  # the child's interpreter may still be starting
        assert ended(sentinel_end)


def test_the_sentinel_ends_though_a_forked_child_keeps_the_pipe_open() -> None:
    with owner() as watched, asking(watched.port) as sock, watching_end_of(watched.sentinel_pid) as sentinel_end:
        assert ask(sock) is Vital.RUNNING
        forked = int(watched.tell("import os, signal; pid = os.fork(); print(pid) if pid else signal.pause()"))
        try:
            watched.process.kill()
            assert ended(sentinel_end)
            assert os.path.exists(f"/proc/{forked}")
        finally:
            os.kill(forked, signal.SIGKILL)


def test_a_forked_copy_that_closes_does_not_end_its_parents_sentinel() -> None:
    with owner() as watched, asking(watched.port) as sock:
        line = (
            "import os; pid = os.fork(); (sentinel.close(), os._exit(0)) if not pid else print(os.waitpid(pid, 0)[1])"
        )
        assert watched.tell(line) == "0"
        assert ask(sock) is Vital.RUNNING


def test_a_process_that_ends_without_closing_leaves_no_sentinel() -> None:
    with owner() as watched, watching_end_of(watched.sentinel_pid) as sentinel_end:
        assert watched.process.stdin is not None
        watched.process.stdin.close()
        assert watched.process.wait(PATIENCE_S) == 0
        assert ended(sentinel_end)


def test_a_sentinel_that_somebody_killed_shows_it(sentinel: Sentinel) -> None:
    os.kill(sentinel.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sentinel.pid, os.WEXITED | os.WNOWAIT)
    assert not sentinel.alive

"""Start a host process from a user's process, which stays as it is: an interpreter of its own that ends with it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from ....errors import ProtocolError
from ....process.spawn import seqpacket
from ....process.spawn.interpreter import start_interpreter
from ....wire.messages import decode, encode
from ...errors import DeploymentError
from ...graces import GRACE_S
from ..messages import Stop
from ..options import HostOptions
from ..order import Order
from .line import Ready

PROGRAM = "multiworld.serving.hosts.program:main"
STOP_MARGIN_S = 8.0
REAP_S = 1.0
POLL_S = 0.01


def start_host(
    address: tuple[str, int],
    token: str,
    *,
    name: str = "",
    own_address: str = "",
    preload: Iterable[str] = (),
    members: Iterable[Order] = (),
    log_dir: str | Path = "",
    grace_s: float = GRACE_S,
) -> HostHandle:
    """Start it and return at once, while it imports. It dials the controller at ``address`` when it is ready.

    It has this process's environment, folder, output and ``sys.path``. When this process ends, by whatever, it and all
    its members do. Ctrl-C in a terminal does not reach them. ``name``: by default the machine's. Raises OSError.
    """
    options = HostOptions(
        address=address,
        token=token,
        name=name or socket.gethostname(),
        own_address=own_address,
        preload=tuple(preload),
        members=tuple(members),
        log_dir=str(log_dir),
        grace_s=grace_s,
        paths=tuple(os.path.abspath(entry) for entry in sys.path),
        owner_pid=os.getpid(),
    )
    with open(seqpacket.sealed(encode(options)), "rb") as told, ExitStack() as failing:
        ours, theirs = seqpacket.connected_pair()
        failing.callback(ours.close)
        with theirs:
            dies = threading.current_thread() is threading.main_thread()  # the kernel counts the starting thread's end
            handle = HostHandle(start_interpreter(PROGRAM, theirs, dies, reads_stdin=False), ours)
        failing.callback(handle.abort)
        with suppress(BrokenPipeError):  # it died already, which ``wait_ready`` tells
            seqpacket.send(ours, b"options", (told.fileno(),))
        ours.setblocking(False)
        failing.pop_all()
    return handle


class HostHandle:
    """A host process that this process started. ``abort`` it, or ``stop`` it, in the end."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self._process, self._line = process, line

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"ended with {self.returncode}"
        return f"<HostHandle: process {self.pid}, {state}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    async def wait_ready(self, timeout_s: float = 60.0) -> list[str]:
        """Wait until it can start members, and return what could not be preloaded, and why.

        Raises DeploymentError if it ended, or is not ready in time.
        """
        try:
            ready = await asyncio.wait_for(self._next(), timeout_s)
        except asyncio.TimeoutError:
            reason = f"the host process {self.pid} was not ready within {timeout_s:g} s"
            raise DeploymentError(reason) from None
        except (OSError, ProtocolError) as error:
            raise DeploymentError(f"the host process {self.pid} failed: {error}") from error
        if ready is None:
            await self._wait(REAP_S)
            reason = f"the host process {self.pid} ended with {self.returncode} before it was ready; see its output"
            raise DeploymentError(reason)
        return list(ready.warnings)

    async def wait_ended(self) -> None:
        """Wait for its end, whyever that comes."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        if self.returncode is not None:
            return
        pidfd = os.pidfd_open(self.pid)
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """End it and its members: gateways have ``grace_s`` to finish. Bounded; what does not end is killed."""
        if self.returncode is None and self._line.fileno() >= 0:
            with suppress(OSError):
                seqpacket.send(self._line, encode(Stop(grace_s=float(grace_s))))
            try:
                await self._wait(grace_s + STOP_MARGIN_S)
            finally:
                self.abort()
        self.abort()

    def abort(self) -> None:
        """Kill it, and by that its members, at once. Idempotent."""
        self._process.kill()  # does nothing if it was reaped
        self._line.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_S)

    async def _next(self) -> Ready | None:
        try:
            told = await asyncio.get_running_loop().sock_recv(self._line, seqpacket.LARGEST)
        except ConnectionResetError:  # it was killed before it had read all that it was told
            return None
        return decode(Ready, told) if told else None

    async def _wait(self, timeout_s: float) -> None:
        """Wait for its end, for so long at most."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while self.returncode is None and loop.time() < until:  # noqa: ASYNC110 - child watchers are the user's
            await asyncio.sleep(POLL_S)

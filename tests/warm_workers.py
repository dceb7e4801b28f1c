"""Workers that are forked from a process which has imported torch already: the import is most of a short test's work.

They are processes as others are: real children of the test's process, in process groups of their own, that end as any
interpreter does. A worker that wants another variable of those that an interpreter reads at its start gets a new one,
and so do all of modules marked ``cold``: those about how workers start. The nursery forks ``warm_programs``, too.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multiworld.process.spawn.forking import adopt_orphans, fork, is_adopting_orphans
from multiworld.testing.worker_process import ChildProcess, Ends
from tests.warm_programs import Program, become_program, enter_netns, read_at_start

PRELOADED = (
    "torch",
    "multiworld",
    "multiworld.testing.worker",
    "multiworld.testing.member_program",
    "multiworld.testing.channel_conformance.member",
    "multiworld.cli.job_end",
    "multiworld.cli.main",
    "multiworld.cli.serve",
    "multiworld.elastic.launch.launcher",
    "multiworld.serving.launch",
)
USUAL_ENV = {"PYTHONUNBUFFERED": "1"}  # besides that of the tests
PID_BYTES = 8
ALL_LOADED = b"loaded"
ORDER_BYTES = 128 * 1024
MAX_ENDS = 16


class Nursery:
    """The process that forks, from the side of the tests. It ends with this one."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._env = dict(os.environ)
        self._lock = threading.Lock()  # guards the channel, and that orphans are adopted
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from tests.warm_workers import serve; serve({theirs.fileno()})"],
            stdin=subprocess.DEVNULL,
            env={**self._env, **USUAL_ENV},
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

    def start(
        self, ends: Ends, name: str, target: str, *, netns: str | None, env: Mapping[str, str], cwd: str | None
    ) -> ChildProcess:
        """Do what ``ChildProcess`` does."""
        whole = {**os.environ, **USUAL_ENV, **env}
        if read_at_start(whole) != read_at_start(self._env):
            return ChildProcess(ends, name, target, netns=netns, env=env, cwd=cwd)
        worker = {"name": name, "target": target, "netns": netns, "env": whole, "cwd": cwd or os.getcwd()}
        return ForkedChild(self._fork({"worker": worker}, ends))

    def fork_program(self, program: Program, ends: Sequence[int]) -> int:
        """Return the pid of the program, which is our child: see ``warm_programs``."""
        return self._fork({"program": asdict(program)}, ends)

    def preload(self, *modules: str) -> None:
        """Have what is forked from now on find these modules imported, too: each would import them anew."""
        with self._lock:
            self._ask({"preload": modules}, ())

    def close(self) -> None:
        self._channel.close()
        self._process.wait()

    def _fork(self, order: Mapping[str, Any], ends: Sequence[int]) -> int:
        """Adopt orphans for that moment only: a test may have some of its own, and look at what becomes of them."""
        with self._lock:
            adopted_before = is_adopting_orphans()
            adopt_orphans(True)
            try:
                return int.from_bytes(self._ask(order, ends), "little")
            finally:
                adopt_orphans(adopted_before)

    def _ask(self, order: Mapping[str, Any], ends: Sequence[int]) -> bytes:
        socket.send_fds(self._channel, [json.dumps(order).encode()], list(ends))
        answer = self._channel.recv(PID_BYTES)
        if not answer:
            raise ConnectionResetError("the process that forks workers has ended")
        return answer


class ForkedChild(ChildProcess):
    """A child of ours that another process has forked for us."""

    def __init__(self, pid: int) -> None:
        self.pid, self._process = pid, _Adopted(pid)  # type: ignore[assignment]
        self.pidfd = os.pidfd_open(pid)


@dataclass
class _Adopted:
    """As much of a ``Popen`` as ``ChildProcess`` needs."""

    pid: int
    returncode: int | None = None

    def wait(self) -> None:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def serve(channel_fd: int) -> None:
    """Fork workers until the tests end; in a worker, return once it has done its job, so that its interpreter ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests, which end this process
    _preload(PRELOADED)
    channel = socket.socket(fileno=channel_fd)
    while True:
        content, fds, _, _ = socket.recv_fds(channel, ORDER_BYTES, MAX_ENDS)
        if not content:
            return
        order = json.loads(content)
        if "preload" in order:
            _preload(order["preload"])
            channel.send(ALL_LOADED)
            continue
        if (answer := _hatch()) is None:
            channel.close()
            if "program" in order:
                become_program(Program(**order["program"]), fds, sys.path[1:])
            _become_worker(Ends(*fds), **order["worker"])
            return
        for fd in fds:
            os.close(fd)
        channel.send(answer)


def _preload(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # else each worker looks through all of it, and copies it by that


def _hatch() -> bytes | None:
    """Fork a grandchild, and return its pid once its parent has ended; None in the grandchild itself, as soon."""
    reader, writer = os.pipe()
    middle = fork()
    if middle == 0:
        own = os.pidfd_open(os.getpid())
        pid = fork()
        if pid == 0:
            os.close(reader)
            os.close(writer)
            poll = select.poll()
            poll.register(own, select.POLLIN)
            poll.poll()  # from here on its parent is the one that asked for it
            os.close(own)
            return None
        os.write(writer, pid.to_bytes(PID_BYTES, "little"))
        os._exit(0)
    os.close(writer)
    os.waitpid(middle, 0)
    answer = os.read(reader, PID_BYTES)
    os.close(reader)
    return answer


def _become_worker(ends: Ends, name: str, target: str, netns: str | None, env: Mapping[str, str], cwd: str) -> None:
    from multiworld.testing.worker import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for fd, output in ((ends.stdout_fd, 1), (ends.stderr_fd, 2)):
        os.dup2(fd, output)
        os.close(fd)
    if netns is not None:
        enter_netns(netns)
    sys.argv = ["-c", name, target]
    main(ends.report_fd, ends.command_fd)

"""An agent for tests of the fork server, in this process or as a program that can be killed."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Queue
from typing import Any

from multiworld.process.child import WorkerProcess
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.process.spawn.fork_server import ForkServer, Launch
from multiworld.testing import scaled
from multiworld.wire.progress.thread import ProgressThread

WAIT_S = 20.0


class Started:
    """A worker that was asked for, and the read ends of its output."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._result: Queue[int | OSError] = Queue()
        self._returncode: Queue[int] = Queue()
        self.process: WorkerProcess | None = None
        self._stdout, self.stdout_fd = os.pipe()
        self._stderr, self.stderr_fd = os.pipe()

    def on_started(self, result: int | OSError) -> None:
        if isinstance(result, int):
            self.process = WorkerProcess(self._agent.loop, result, self._returncode.put)
        self._result.put(result)

    @property
    def pid(self) -> int:
        """Wait until it is started. Raises what prevented that."""
        result = self._result.get(timeout=scaled(WAIT_S))
        self._result.put(result)
        if isinstance(result, OSError):
            raise result
        return result

    def read_line(self) -> str:
        """Wait for a line of its standard output."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._stdout, 1)
            assert byte, f"it ended: {self.stderr()}"
            line += byte
        return line.decode().rstrip("\n")

    def stdout(self) -> str:
        """Wait until nobody writes any more."""
        with open(self._stdout, closefd=False) as file:
            return file.read()

    def stderr(self) -> str:
        with open(self._stderr, closefd=False) as file:
            return file.read()

    def wait(self) -> int:
        assert self.pid
        returncode = self._returncode.get(timeout=scaled(WAIT_S))
        self._returncode.put(returncode)
        return returncode

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the ``WorkerProcess`` where it must be called."""
        assert self.pid
        return self._agent.call(getattr(self.process, method), *arguments)

    def close(self) -> None:
        try:
            assert self.pid
            self.call("kill")
            self.wait()
        except OSError:  # it was never started
            pass
        os.close(self._stdout)
        os.close(self._stderr)


class Agent:
    """A fork server with its progress thread, for plain callers. Close it, whatever has happened."""

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        paths: Sequence[str] = (),
        warm: bool = True,
        spares: int = 0,
        forked: bool = False,
    ) -> None:
        if forked:  # from a process with one thread
            self.server = ForkServer.start(preload=preload, paths=paths, warm=warm, spares=spares)
        self.loop = ProgressThread("test-agent")
        if not forked:
            self.server = ForkServer.start(preload=preload, paths=paths, warm=warm, spares=spares)
        self.lost: Queue[str] = Queue()
        self._started: list[Started] = []
        self.call(self.server.attach, self.loop, self.lost.put)

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        results: Queue[Any] = Queue()
        self.loop.call_soon(lambda: results.put(function(*arguments)))
        return results.get(timeout=scaled(WAIT_S))

    def spawn(
        self,
        kind: EntrypointKind,
        target: str,
        *arguments: str,
        cwd: str | None = "/",
        warm: bool = True,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        reads_stdin: bool = False,
        named: str | None = None,
        set_up: str | None = None,
        passed: Sequence[int] = (),
    ) -> Started:
        entrypoint = Entrypoint(kind=kind, target=target, python=python, named=named)
        launch = Launch(
            entrypoint=entrypoint,
            arguments=arguments,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            warm=warm,
            reads_stdin=reads_stdin,
            set_up=set_up,
        )
        started = Started(self)
        self._started.append(started)

        def spawn() -> None:
            self.server.spawn(launch, started.stdout_fd, started.stderr_fd, started.on_started, passed=passed)
            os.close(started.stdout_fd)
            os.close(started.stderr_fd)

        self.call(spawn)
        return started

    def restart(self, **options: Any) -> None:
        """Start another fork server after the first was lost."""
        self.call(self.server.close)
        self.server = ForkServer.start(**options)
        self.call(self.server.attach, self.loop, self.lost.put)

    def close_workers(self) -> None:
        while self._started:
            self._started.pop().close()

    def close(self) -> None:
        self.close_workers()
        self.call(self.server.close)
        self.loop.stop()


def main() -> None:
    """Start the workers that the command line describes, report their pids and that of the fork server, and wait."""
    options = json.loads(sys.argv[1])
    if options["warm"]:
        importlib.import_module("torch")  # as a launcher has
    agent = Agent(forked=True, warm=options["warm"])
    workers = [agent.spawn(EntrypointKind(kind), target, *rest) for kind, target, *rest in options["workers"]]
    pids = [worker.pid for worker in workers]
    lines = [worker.read_line() for worker in workers]
    report = {"server": agent.server.pid, "workers": pids, "lines": lines, "at": time.monotonic()}
    print(json.dumps(report), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

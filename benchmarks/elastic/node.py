"""One launcher process and all that it has started: found by a variable in their environment, wherever they went."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["NODE_VARIABLE", "Node", "marked_processes"]

NODE_VARIABLE = "MULTIWORLD_BENCHMARK_NODE"
GONE_S = 5.0
SHOWN_LINES = 40


class Node:
    """A simulated host: its agent, what that has started, and what it has written."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        output: Path,
        popen: Callable[..., subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self.name, self._output = name, output
        self.started_at = time.monotonic()
        with output.open("wb") as file:
            options = {
                "env": {**env, NODE_VARIABLE: name},
                "cwd": cwd,
                "stdin": subprocess.DEVNULL,
                "stdout": file,
                "stderr": subprocess.STDOUT,
                "start_new_session": True,
            }
            if popen is None:
                self.process: subprocess.Popen[bytes] = subprocess.Popen(command, **options)  # type: ignore[call-overload]
            else:
                self.process = popen(*command, **options)

    @property
    def agent_pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def tail(self) -> str:
        return "\n".join(self.output.splitlines()[-SHOWN_LINES:])

    def others(self) -> list[int]:
        """Return the processes that the agent has started, directly or not, which are there now."""
        return [pid for pid in marked_processes(self.name) if pid != self.agent_pid]

    def kill(self) -> float:
        """Kill everything, as a loss of power does; return the monotonic time just before."""
        pids = [self.agent_pid, *self.others()]
        at = time.monotonic()
        for pid in pids:
            _kill(pid)
        self.process.wait()
        while left := self.others():
            for pid in left:
                _kill(pid)
        return at

    def kill_agent(self) -> float:
        """Kill the agent alone; return the monotonic time just before."""
        at = time.monotonic()
        _kill(self.agent_pid)
        self.process.wait()
        return at

    def end(self, timeout_s: float) -> bool:
        """Ask the agent to end its job; returns whether it has ended in time."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.returncode is not None

    def wait_gone(self, timeout_s: float = GONE_S) -> list[int]:
        """Wait until nothing that the agent has started is left; returns what still is."""
        deadline = time.monotonic() + timeout_s
        while (left := self.others()) and time.monotonic() < deadline:
            time.sleep(0.005)
        return left


def marked_processes(name: str) -> list[int]:
    """Return the processes whose environment names the node; such as have ended and not been waited for have none."""
    mark = f"{NODE_VARIABLE}={name}\0".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

"""A job under measurement: its side (our launcher or torchrun, and the program), its nodes, what its workers did."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multiworld.testing import Host

from .journal import Formation
from .node import Node
from .trial import Trial

__all__ = [
    "OURS",
    "OURS_PLAIN",
    "ROOT",
    "SPARES",
    "TORCHRUN",
    "Job",
    "Side",
    "TrialFailed",
    "choose_rank",
    "free_port",
    "restarted",
]

ROOT = Path(__file__).parents[2]
PLAIN, WORLDS = "benchmarks.elastic.plain_worker", "benchmarks.elastic.worlds_worker"
LAUNCH_S = 60.0
LISTEN_S = 30.0
ASK = "import sys; from multiworld.cli.main import main; sys.exit(main())"
ASK_S = 30.0
STEADY_STEPS = 40  # of all ranks together
TERM = re.compile(r"this agent coordinates the job \(term (\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Side:
    """A launcher and a program, as they are compared."""

    name: str
    launcher: str
    program: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.launcher == "multiworld.run"

    @property
    def restarts_all(self) -> bool:
        return self.program == PLAIN


OURS = Side(name="worlds", launcher="multiworld.run", program=WORLDS)
SPARES = Side(name="worlds, a spare", launcher="multiworld.run", program=WORLDS, options=("--spares", "1"))
OURS_PLAIN = Side(name="plain program", launcher="multiworld.run", program=PLAIN)
TORCHRUN = Side(
    name="torchrun",
    launcher="torch.distributed.run",
    program=PLAIN,
    # else it reads the keys of the dead generation, and does not recover at all
    environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
)


class TrialFailed(Exception):
    """What was waited for did not happen in time."""


class Job(Trial):
    """``end`` before the ``with`` block is left ends the job as its user would.

    ``leftovers``: how many processes were still there five seconds after their agents had ended.
    """

    def __init__(
        self,
        side: Side,
        *,
        nnodes: str = "1",
        nproc: int = 4,
        max_restarts: int | None = 3,
        options: Sequence[str] = (),
        backend: str = "c10d",
        endpoint: str | None = None,
        pause_s: float = 0.02,
    ) -> None:
        super().__init__(side.name)
        self.side, self.nnodes, self.nproc = side, nnodes, nproc
        self.endpoint = endpoint or (None if nnodes == "1" else f"127.0.0.1:{free_port()}")
        self._backend = backend
        self.leftovers = 0
        self._options = list(options)
        if max_restarts is not None:
            self._options += ["--max-restarts", str(max_restarts)]
        self._pause_s = pause_s

    # ---- nodes

    def start(self, num_nodes: int = 1) -> list[Node]:
        """Start so many nodes; the first listens at the endpoint before the others begin."""
        for _ in range(num_nodes):
            self.start_node()
        return self.nodes

    def start_node(self, host: Host | None = None) -> Node:
        if len(self.nodes) == 1 and self.endpoint is not None and host is None:
            self._await_endpoint()
        name = f"{self.name}.{len(self.nodes)}"
        env = {
            **os.environ,
            **self.side.environment,
            "PYTHONUNBUFFERED": "1",
            "LOGLEVEL": os.environ.get("LOGLEVEL", "INFO"),
        }
        output = self.folder / f"output{len(self.nodes)}"
        popen = None if host is None else host.popen
        node = Node(name, self._command(host), env=env, cwd=ROOT, output=output, popen=popen)
        self.nodes.append(node)
        return node

    def _command(self, host: Host | None) -> list[str]:
        meeting = ["--standalone"]
        if self.endpoint is not None:
            meeting = ["--nnodes", self.nnodes, "--rdzv-backend", self._backend, "--rdzv-endpoint", self.endpoint]
            meeting += ["--rdzv-id", self.name]
            if host is None:
                meeting += ["--local-addr", "127.0.0.1"]
        program = [self.side.program, "--journal", str(self.journal_path), "--pause-s", str(self._pause_s)]
        if self.side.restarts_all:
            program += ["--checkpoint", str(self.folder / "checkpoint")]
        return [
            *(sys.executable, "-m", self.side.launcher, "--nproc-per-node", str(self.nproc)),
            *(*meeting, *self._options, *self.side.options, "-m", *program),
        ]

    def _await_endpoint(self) -> None:
        assert self.endpoint is not None
        port = int(self.endpoint.rpartition(":")[2])
        if not self.journal.wait(lambda: _is_listening(port) or self.nodes[0].returncode is not None, LISTEN_S):
            raise TrialFailed(f"{self.side.name}: nobody listens at {self.endpoint} after {LISTEN_S:g} s")

    def end(self, timeout_s: float = 10.0) -> None:
        """End the job as its user would; raise TrialFailed unless all of it ends."""
        alive = [node for node in self.nodes if node.returncode is None]
        for node in alive[:1]:
            node.end(timeout_s)
        for node in alive:
            self.journal.wait(lambda node=node: node.returncode is not None, timeout_s)  # type: ignore[misc]
        stuck = [node.name for node in alive if node.returncode is None]
        self.leftovers = sum(len(node.wait_gone()) for node in self.nodes)
        if stuck or self.leftovers:
            raise TrialFailed(f"{self.side.name}: after SIGTERM {stuck} and {self.leftovers} processes are left")

    def coordinator(self, nodes: Sequence[Node] | None = None) -> Node:
        """Return the node that took over last, of all or of these."""
        terms = {node: max([0, *map(int, TERM.findall(node.output))]) for node in nodes or self.nodes}
        return max(terms, key=lambda node: terms[node])

    def events(self) -> list[dict[str, Any]]:
        """Return what the job says that has happened in it, whoever coordinated."""
        command = [sys.executable, "-c", ASK, "events", "--json", "--job", self.name]
        asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ASK_S)
        if asked.returncode:
            raise TrialFailed(f"{self.side.name}: its events cannot be had: {asked.stderr.strip()}")
        return [json.loads(line) for line in asked.stdout.splitlines()]

    # ---- what its workers do

    def await_world(self, world_size: int, after: float, timeout_s: float = LAUNCH_S) -> Formation:
        """Wait for a world of that size, formed after a moment, in which every rank has reduced once."""

        def is_there() -> bool:
            return self.journal.complete(world_size, after) is not None

        if not self._wait(is_there, timeout_s):
            ended = [node.returncode for node in self.nodes]
            raise TrialFailed(
                f"{self.side.name}: no world of {world_size} within {timeout_s:g} s (agents ended: {ended})"
            )
        formation = self.journal.complete(world_size, after)
        assert formation is not None
        return formation

    def await_steps(self, formation: Formation, num_steps: int = STEADY_STEPS, timeout_s: float = 20.0) -> None:
        """Wait until the world has worked for a while."""
        until = formation.num_steps + num_steps
        if not self._wait(lambda: formation.num_steps >= until, timeout_s):
            raise TrialFailed(f"{self.side.name}: a world of {formation.world_size} stands still")

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """As ``Journal.wait``, but not after all agents and their workers have ended."""
        deadline = time.monotonic() + timeout_s
        while not self.journal.wait(condition, min(0.5, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() > deadline or all(node.returncode is not None for node in self.nodes):
                return self.journal.wait(condition, 0)
        return True


def restarted(before: Formation, after: Formation) -> int:
    """Return how many of the processes of one world are not in the next."""
    return len(set(before.pids.values()) - set(after.pids.values()))


def choose_rank(world_size: int) -> int:
    return random.randrange(world_size)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_listening(port: int) -> bool:
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(name).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                return True
    return False

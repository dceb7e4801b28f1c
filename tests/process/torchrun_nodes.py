"""torchrun on what could be hosts of their own, forked from one process that has imported torch; and their workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from multiworld.testing import scaled

if TYPE_CHECKING:
    from typing_extensions import Self

WAIT_S = 20.0
WORKER = """
import json, os, signal, socket
place = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "NODE", "TORCHELASTIC_RESTART_COUNT")}
test = socket.socket(socket.AF_UNIX)
if "REDUCES" in os.environ:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    place["total"] = total.item()
test.connect(os.environ["TEST"])
test.sendall(json.dumps({**place, "pid": os.getpid()}).encode() + b"\\n")
raise SystemExit(int(test.recv(100) or 1))
"""


@dataclass(eq=False)
class Worker:
    """A worker that waits to be told how to exit."""

    sock: socket.socket
    rank: int
    world_size: int
    port: int
    node: str
    restarts: int
    pid: int
    total: float | None

    def exit(self, status: int) -> None:
        with suppress(BrokenPipeError):
            self.sock.sendall(str(status).encode())


@dataclass(eq=False)
class Node:
    """One torchrun."""

    name: str
    pid: int
    log: Path
    nodes: Nodes
    worker_pids: list[int] = field(default_factory=list)
    status: int | None = None

    def kill(self) -> None:
        """As if the host's power went."""
        for pid in [self.pid, *self.worker_pids]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        if self.status is None:
            self.status = self.nodes.parent.ask({"wait": self.pid})
        return self.status


class Parent:
    """The process that torchruns are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )

    def ask(self, question: dict[str, object]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class Nodes:
    """A context manager, at whose end nothing is left."""

    def __init__(self, parent: Parent, directory: Path, *options: str) -> None:
        self.parent = parent
        self._directory, self._options = directory, options
        self._program = directory / "worker.py"
        self._program.write_text(WORKER)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "workers"))
        self._listener.listen()
        self._listener.settimeout(scaled(WAIT_S))
        self._nodes: list[Node] = []
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self._nodes:
            node.kill()
        if kind is not None:
            for node in self._nodes:
                print(f"---- {node.name}", node.log.read_text(), sep="\n")
        for node in self._nodes:
            node.wait()
        self._listener.close()
        for worker in self._workers:
            worker.sock.close()

    def start(self, *options: str, **env: str) -> Node:
        name = "abcdefgh"[len(self._nodes)]
        log = self._directory / f"{name}.log"
        arguments = [*self._options, *options, str(self._program)]
        env = {**env, "NODE": name, "TEST": str(self._directory / "workers")}
        pid = self.parent.ask({"start": arguments, "log": str(log), "env": env})
        self._nodes.append(Node(name, pid, log, self))
        return self._nodes[-1]

    def formed(self, world_size: int) -> list[Worker]:
        """Wait until that many workers of one generation are there, and return them in the order of their ranks."""
        while True:
            connection, _ = self._listener.accept()
            connection.settimeout(scaled(WAIT_S))
            with connection.makefile() as lines:
                place = json.loads(lines.readline())
            worker = Worker(
                sock=connection,
                rank=int(place["RANK"]),
                world_size=int(place["WORLD_SIZE"]),
                port=int(place["MASTER_PORT"]),
                node=place["NODE"],
                restarts=int(place["TORCHELASTIC_RESTART_COUNT"]),
                pid=place["pid"],
                total=place.get("total"),
            )
            self._workers.append(worker)
            next(node for node in self._nodes if node.name == worker.node).worker_pids.append(worker.pid)
            generation = [each for each in self._workers if each.port == worker.port]
            if len(generation) == worker.world_size == world_size:
                assert sorted(each.rank for each in generation) == list(range(world_size))
                return sorted(generation, key=lambda each: each.rank)

    def of(self, worker: Worker) -> Node:
        return next(node for node in self._nodes if node.name == worker.node)


def main() -> None:
    """Fork a torchrun, or wait for the end of one, as each line of the input says."""
    from torch.distributed.run import main as torchrun

    import multiworld.elastic.torchrun.handler  # noqa: F401

    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status = os.waitpid(question["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        with open(question["log"], "w") as log, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            for fd in (1, 2):
                os.dup2(log.fileno(), fd)
        os.environ.update(question["env"])
        status = 0
        try:
            torchrun(question["start"])
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

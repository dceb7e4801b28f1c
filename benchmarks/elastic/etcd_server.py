"""A real etcd of one's own, which may be killed and started again with what it had on its disk."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .job import free_port

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EtcdServer", "etcd_program"]


def etcd_program() -> str | None:
    """Return where etcd is installed, if it is."""
    return shutil.which("etcd")


class EtcdServer:
    """A context manager; the server begins with it. It keeps its data and its log in ``directory``."""

    def __init__(self, directory: Path, *options: str, scheme: str = "http") -> None:
        self.directory, self.port = directory, free_port()
        self._options, self._scheme, self._peer_port = options, scheme, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "etcd.log"

    def start(self) -> None:
        """Start it, at the same port and with the same data as before."""
        own, peers = f"{self._scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        addresses = {
            "--data-dir": str(self.directory / "data"),
            "--listen-client-urls": own,
            "--advertise-client-urls": own,
            "--listen-peer-urls": peers,
            "--initial-advertise-peer-urls": peers,
            "--initial-cluster": f"default={peers}",
            "--heartbeat-interval": "20",  # an election takes as long as ten, and so does the shortest lease
            "--election-timeout": "200",
        }
        command = [etcd_program() or "etcd", *(word for pair in addresses.items() for word in pair), *self._options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """With SIGKILL. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

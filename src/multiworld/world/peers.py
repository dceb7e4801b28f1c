"""What one process tells another about itself when a world is formed."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from functools import lru_cache

from ..errors import ProtocolError
from .procfs import process_start_time
from .vitals import host_identity

__all__ = ["PeerInfo"]

NUMBERS = ("port", "pid", "start_time")


@dataclass(frozen=True, kw_only=True)
class PeerInfo:
    """A process as its peers know it. ``id`` is new for every manager, so that no process is taken for another."""

    id: str
    host: str
    port: int
    pid: int
    start_time: int
    host_id: str
    hostname: str

    @classmethod
    def of_this_process(cls, manager_id: str, host: str, port: int) -> PeerInfo:
        return cls(
            id=manager_id,
            host=host,
            port=port,
            pid=os.getpid(),
            start_time=process_start_time(os.getpid()) or 0,
            host_id=host_identity().hex(),
            hostname=socket.gethostname(),
        )

    @staticmethod
    @lru_cache(maxsize=4096)
    def from_json(text: bytes) -> PeerInfo:
        """Parse what ``to_json`` made; raises ProtocolError for anything else."""
        try:
            peer = PeerInfo(**json.loads(text))
            bytes.fromhex(peer.host_id)
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"a peer's record cannot be read: {error}") from error
        for name, value in vars(peer).items():
            if type(value) is not (int if name in NUMBERS else str):
                raise ProtocolError(f"a peer's record cannot be read: its {name} is {value!r}")
        return peer

    def to_json(self) -> bytes:
        return json.dumps(vars(self)).encode()

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.hostname} ({self.host}:{self.port})"

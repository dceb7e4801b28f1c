"""What one process tells another about itself when a world is formed."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import lru_cache

from ...wire.messages import decode, encode, message
from ..processes.procfs import process_start_time
from ..processes.vitals import host_identity


@message("peer")
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

    def __post_init__(self) -> None:
        bytes.fromhex(self.host_id)

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
        """Return what ``to_json`` made ``text`` of. Raises MessageError."""
        return decode(PeerInfo, text)

    def to_json(self) -> bytes:
        return encode(self)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.hostname} ({self.host}:{self.port})"

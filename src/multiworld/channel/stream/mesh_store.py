"""The store through which process groups connect: it lives in the streams that the ranks of a world have already."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from ...wire.progress.operation import Operation
from ..base import Payload
from ..payload.tensors import payload_segments
from .mesh import StreamMesh
from .message import USER

STORE_TAG = -1  # users' tags are not negative
_NOTHING = torch.empty(0, dtype=torch.uint8)


class MeshStore(Store):
    """What one rank sets, those among ``peers`` get. No server, no name lookup, nothing to clean up.

    It offers what the process groups of PyTorch call while they connect; its methods block, ``close`` ends that. A
    value travels in the description of an empty tensor, because the payloads of these streams may have to travel by
    the very group that is being connected.
    """

    def __init__(self, mesh: StreamMesh, peers: Sequence[int]) -> None:
        super().__init__()
        self._mesh, self._peers = mesh, peers
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._receives: dict[int, Operation[Payload]] = {}
        self._closed: BaseException | None = None
        for peer in peers:
            self._listen(peer)

    def close(self, error: BaseException) -> None:
        """End all waiting with an error. Idempotent."""
        with self._changed:
            if self._closed is not None:
                return
            self._closed = error
            self._changed.notify_all()
        for receive in list(self._receives.values()):
            receive.cancel(error)

    def set(self, key: str, value: Any) -> None:
        stored = bytes(value, "latin-1") if isinstance(value, str) else bytes(value)
        self._put(key, stored)
        meta, segments, tensors = payload_segments({f"{key}={stored.hex()}": _NOTHING})
        for peer in self._peers:
            self._mesh.stream(peer).send(USER, STORE_TAG, meta, segments, tensors)

    def get(self, key: str) -> bytes:
        self._wait_for([key], None)
        return self._values[key]

    def peek(self, key: str) -> bytes | None:
        """Return what is there now, also after the end."""
        return self._values.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._wait_for(keys, None if timeout is None else timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def _wait_for(self, keys: list[str], timeout_s: float | None) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self._closed is not None or self.check(keys), timeout_s)
            if self._closed is not None:
                raise RuntimeError(f"the world ended while a process group connected: {self._closed}")
            if not came:
                raise TimeoutError(f"no rank has set {keys} within {timeout_s:g} s")

    def _put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def _listen(self, peer: int) -> None:
        if self._closed is not None:
            return
        receive = self._receives[peer] = self._mesh.stream(peer).recv(USER, STORE_TAG, None, None)
        receive.add_callback(partial(self._received, peer))

    def _received(self, peer: int, receive: Operation[Payload]) -> None:
        if receive.error is not None:
            self.close(receive.error)
            return
        payload = receive.result()
        assert isinstance(payload, dict)
        for entry in payload:
            key, _, value = entry.rpartition("=")
            self._put(key, bytes.fromhex(value))
        self._listen(peer)

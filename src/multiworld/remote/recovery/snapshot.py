"""A snapshot in the master's memory, or in a file: how it comes from a node, and goes to the next one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..protocol import lanes
from ..protocol.recovering import Manifest, chunks, read_manifest
from ..session.lifetime import Link
from ..session.plainly import plainly

Allocate = Callable[[int], Tensor]
"""Returns memory, as ``[num_bytes]`` uint8."""


class Snapshot:
    """``position``: of the record that asked for it. ``encoded``: the manifest, as the node sent it."""

    def __init__(self, position: int, encoded: bytes, manifest: Manifest, memory: Tensor) -> None:
        self.position, self.encoded = position, encoded
        self._manifest, self._memory = manifest, memory

    @property
    def num_bytes(self) -> int:
        return len(self._memory) + len(self.encoded)

    @plainly
    def send(self, link: Link, request: int) -> None:
        """Send the memories to a node that restores it. Raises the error of a world that is broken."""
        memories = _parts(self._memory, self._manifest)
        for chunk in chunks(_sizes(self._manifest)):
            parts = [memories[part.memory][part.begin : part.end] for part in chunk]
            sending = link.bulk.start_send_tensors(parts, lanes.NODE, lanes.FIRST_ELEMENTS + request, None)
            link.bulk.wait_thread(sending, lanes.NODE, None)


@plainly
def receive(link: Link, request: int, position: int, encoded: bytes, allocate: Allocate) -> Snapshot | None:
    """Receive the memories of a snapshot; None: the node gave it up. Raises the error of a world that is broken."""
    manifest = read_manifest(encoded)
    memory = allocate(manifest.num_bytes)
    memories = _parts(memory, manifest)
    for chunk in chunks(_sizes(manifest)):
        receive = link.bulk.start_recv_tensors(lanes.NODE, lanes.FIRST_ELEMENTS + request, None)
        values = link.bulk.wait_thread(receive, lanes.NODE, None)
        assert isinstance(values, list)
        if [len(each) for each in values] != [part.end - part.begin for part in chunk]:
            return None
        for part, each in zip(chunk, values, strict=True):
            memories[part.memory][part.begin : part.end] = each
    return Snapshot(position, encoded, manifest, memory)


def in_memory(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def in_directory(directory: str) -> Allocate:
    """Return what allocates in a file without a name: it goes with the memory. Raises OSError."""

    def allocate(num_bytes: int) -> Tensor:
        if not num_bytes:
            return in_memory(0)
        handle, path = tempfile.mkstemp(prefix="multiworld-snapshot-", dir=directory)
        try:
            os.posix_fallocate(handle, 0, num_bytes)  # a full disk is an error here, not a signal later
            return torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8)
        finally:
            os.close(handle)
            os.unlink(path)

    return allocate


def _sizes(manifest: Manifest) -> list[int]:
    return [stored.num_bytes for stored in manifest.memories]


def _parts(memory: Tensor, manifest: Manifest) -> Sequence[Tensor]:
    return torch.split(memory, _sizes(manifest)) if manifest.memories else ()

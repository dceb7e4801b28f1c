"""The gloo channel: PyTorch's own Gloo process group under a world, built without the default group.

A ``StreamMesh`` (one connection of ours to each peer) carries the header of every message. A payload of at most
``INLINE_BYTES`` travels with its header, which goes anyway: up to there, measured, that is faster than Gloo. Larger
ones go through Gloo, and the receiving process gives Gloo memory for them as soon as it has read their header: so no
Gloo operation waits for somebody who is not there, a receive that does not fit fails alone, and tags do not block each
other.

Collectives are ours, over the same streams. Gloo's own never end when a member is lost while data is half here: their
thread and their group stay until a timeout, and so would whoever waits. Ours are as fast or faster but for all_reduce
of many megabytes (``multiworld bench collectives``).

Gloo knows no deadline short of closing all connections of a group. So cancelling an operation whose data is already
moving, or letting its deadline pass, waits a moment for its end, and if that does not come costs the world. One that
still waits for its peer costs nothing.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch.distributed as dist

from ..wire.operation import Operation, drive
from ..wire.waiting import run_in_thread
from .base import ChannelContext, ChannelSupport
from .gloo_group import GlooGroup
from .mesh import StreamMesh
from .mesh_store import MeshStore
from .moving import MovingStream
from .stream import MessageStream, StreamOwner
from .streamed import StreamChannel

__all__ = ["GlooChannel"]

INLINE_BYTES = 8 * 1024 * 1024


class GlooChannel(StreamChannel):
    """Headers and small payloads over our own connections, large payloads over Gloo."""

    name: ClassVar[str] = "gloo"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, context: ChannelContext) -> None:
        label = f"gloo-{context.world}-{context.generation}"
        self._group = GlooGroup(label, context.hosts[context.rank], context.rank, context.world_size)
        super().__init__(context, StreamMesh(context, self._make_stream))
        self._store: MeshStore | None = None

    @classmethod
    def support(cls) -> ChannelSupport:
        if not dist.is_available():
            return ChannelSupport(cls.name, False, "this PyTorch was built without torch.distributed")
        if not dist.is_gloo_available():
            return ChannelSupport(cls.name, False, "this PyTorch was built without Gloo")
        return ChannelSupport(cls.name, True)

    def connect(self, timeout_s: float) -> Operation[None]:
        return drive(self._connect(timeout_s))

    def end_after_leave(self, error: Exception) -> None:
        self._end_group(error)
        super().end_after_leave(error)

    def abort(self, error: Exception) -> None:
        self._end_group(error)  # first: what fails in the streams may have to wait until Gloo has let go
        super().abort(error)

    async def _connect(self, timeout_s: float) -> None:
        await self._mesh.connect(timeout_s)
        context = self.context
        if context.world_size == 1:
            return
        store = self._store = MeshStore(self._mesh)
        build = partial(self._group.build, store, timeout_s)
        try:
            await run_in_thread(build, f"gloo-{context.world}-{context.generation}-connect")
        finally:
            store.close(RuntimeError("Gloo is connected"))

    def _make_stream(self, owner: StreamOwner, rank: int) -> MessageStream:
        return MovingStream(owner, rank, self._group.mover(rank), inline_bytes=INLINE_BYTES)

    def _end_group(self, error: Exception) -> None:
        if self._store is not None:
            self._store.close(error)
        self._group.abort()

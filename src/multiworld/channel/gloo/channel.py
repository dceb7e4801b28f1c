"""The gloo channel: PyTorch's own Gloo process groups under a world, built without the default group.

A ``StreamMesh`` (one connection of ours to each peer) carries the header of every message. A payload of at most
``INLINE_BYTES`` travels with its header, which goes anyway: up to there, measured, that is faster than Gloo. Larger
ones go through Gloo, and the receiving process gives Gloo memory for them as soon as it has read their header: so no
Gloo operation waits for somebody who is not there, a receive that does not fit fails alone, and tags do not block each
other.

Each pair of ranks has a Gloo group of its own, which its first large payload calls for. Until that is connected, and
for ever if it cannot be, large payloads travel with their headers too. So a join costs what it costs on ``tcp``, and
worlds that send nothing large hold no Gloo connection.

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

from ..base import ChannelContext, ChannelSupport
from ..stream.mesh import StreamMesh
from ..stream.mesh_store import MeshStore
from ..stream.message_stream import MessageStream
from ..stream.moving import MovingStream
from ..stream.owner import StreamOwner
from ..stream_channel.channel import StreamChannel
from ..threads import start_reaper
from .group import GlooGroup, reap_all

INLINE_BYTES = 8 * 1024 * 1024


class GlooChannel(StreamChannel):
    """Headers and small payloads over our own connections, large payloads over Gloo."""

    name: ClassVar[str] = "gloo"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    cancel_costs_world: ClassVar[bool] = True

    def __init__(self, context: ChannelContext) -> None:
        self._label = f"gloo-{context.world}-{context.generation}"
        self._host, self._rank = context.hosts[context.rank], context.rank
        self._groups: list[GlooGroup] = []
        super().__init__(context, StreamMesh(context, self._make_stream))

    @classmethod
    def support(cls) -> ChannelSupport:
        if not dist.is_available():
            return ChannelSupport(cls.name, False, "this PyTorch was built without torch.distributed")
        if not dist.is_gloo_available():
            return ChannelSupport(cls.name, False, "this PyTorch was built without Gloo")
        return ChannelSupport(cls.name, True)

    def _end_streams(self, error: Exception, *, keep_arrived: bool) -> None:
        self._end_groups(error)  # first: what fails in the streams may have to wait until Gloo has let go
        super()._end_streams(error, keep_arrived=keep_arrived)

    def _make_stream(self, owner: StreamOwner, rank: int) -> MessageStream:
        open_store = partial(self._open_store, rank)
        group = GlooGroup(f"{self._label}-{rank}", self._host, leads=self._rank < rank, open_store=open_store)
        self._groups.append(group)
        return MovingStream(owner, rank, group.mover, inline_bytes=INLINE_BYTES)

    def _open_store(self, rank: int) -> MeshStore:
        return MeshStore(self._mesh, [rank])

    def _end_groups(self, error: Exception) -> None:
        begun = [group for group in self._groups if group.abort(error)]
        if begun:
            start_reaper(partial(reap_all, begun), f"{self._label}-reaper")

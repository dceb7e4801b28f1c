"""What the channels have in common that use shared memory between those ranks that run on one host."""

from __future__ import annotations

from collections.abc import Callable

from .base import ChannelContext
from .host_memory import HostMemory
from .mesh import StreamMesh
from .shared_area import SharedArea
from .shared_stream import SharedStream
from .stream import MessageStream
from .stream_owner import StreamOwner
from .streamed import StreamChannel

__all__ = ["HostChannel"]


class HostChannel(StreamChannel):
    """``local`` says which ranks are reached over a Unix socket; with ``or_else_tcp``, over TCP if that fails."""

    def __init__(self, context: ChannelContext, *, local: Callable[[int], bool], or_else_tcp: bool = False) -> None:
        memory = HostMemory(context.world, context.rank, context.world_size)

        def make_stream(owner: StreamOwner, rank: int) -> MessageStream:
            return SharedStream(owner, rank, memory)

        mesh = StreamMesh(context, make_stream, local=local, or_else_tcp=or_else_tcp)
        super().__init__(context, mesh, SharedArea(context.loop, memory))

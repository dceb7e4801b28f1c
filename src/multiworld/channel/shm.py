"""The channel for CPU tensors between processes of one host: shared memory, with a Unix socket per pair of ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import ClassVar

from ..wire.memory.shared_region import SharedRegion
from .base import ChannelContext, ChannelSupport
from .shared_memory.host_memory import HostMemory
from .shared_memory.pipe import WINDOW_BYTES
from .shared_memory.shared_area import SharedArea
from .stream.mesh import StreamMesh
from .stream.message_stream import MessageStream
from .stream.owner import StreamOwner
from .stream.shared_stream import SharedStream
from .stream_channel.channel import StreamChannel

BUFFER_BYTES = WINDOW_BYTES
"""What each process of a pair that exchanges large tensors holds for what it sends."""


class HostChannel(StreamChannel):
    """Shares memory with those ranks that run on this host.

    ``local`` says which ranks are reached over a Unix socket; with ``or_else_tcp``, over TCP if that fails.
    """

    def __init__(self, context: ChannelContext, *, local: Callable[[int], bool], or_else_tcp: bool = False) -> None:
        memory = HostMemory(context.world, context.rank, context.world_size)

        def make_stream(owner: StreamOwner, rank: int) -> MessageStream:
            return SharedStream(owner, rank, memory)

        mesh = StreamMesh(context, make_stream, local=local, or_else_tcp=or_else_tcp)
        super().__init__(context, mesh, SharedArea(context.loop, memory))


class ShmChannel(HostChannel):
    """All members must run on one host, as one user."""

    name: ClassVar[str] = "shm"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, local=lambda _: True)

    @classmethod
    def support(cls) -> ChannelSupport:
        try:
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()
            _, descriptor = SharedRegion.create(WINDOW_BYTES)
        except OSError as error:
            return ChannelSupport(cls.name, False, f"no shared memory or no Unix sockets: {error}")
        os.close(descriptor)
        return ChannelSupport(cls.name, True)

    @classmethod
    def refusal(cls, elsewhere: Sequence[int]) -> str:
        if not elsewhere:
            return ""
        ranks = f"rank{'s' if len(elsewhere) > 1 else ''} {', '.join(map(str, elsewhere))}"
        return (
            f"backend 'shm' needs all members on one host, but {ranks} cannot share memory with this process; "
            "use backend 'auto' or 'tcp'"
        )

"""Our own channel for CPU tensors: a framed TCP connection per pair of ranks, and collectives over send and receive."""

from __future__ import annotations

from typing import ClassVar

from .base import ChannelContext
from .stream.mesh import StreamMesh
from .stream_channel.channel import StreamChannel


class TcpChannel(StreamChannel):
    """Framed, self-describing, zero-copy into the caller's memory; progresses on the manager's thread."""

    name: ClassVar[str] = "tcp"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, StreamMesh(context))

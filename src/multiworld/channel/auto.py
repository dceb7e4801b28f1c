"""The default channel for CPU tensors: shared memory between the ranks of one host, TCP between hosts."""

from __future__ import annotations

from typing import ClassVar

from ..wire.operation import Operation
from .base import ChannelContext
from .mesh import StreamMesh
from .shared_stream import SharedStream
from .streamed import StreamChannel

__all__ = ["AutoChannel"]


class AutoChannel(StreamChannel):
    """Chooses for each pair of ranks, when they connect. A pair that cannot share memory after all uses TCP."""

    name: ClassVar[str] = "auto"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, context: ChannelContext) -> None:
        connector = context.connector
        super().__init__(context, StreamMesh(context, SharedStream, local=connector.shares_host, or_else_tcp=True))

    def connect(self, timeout_s: float) -> Operation[None]:
        return self._mesh.connect(timeout_s)

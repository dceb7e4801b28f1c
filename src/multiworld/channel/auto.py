"""The default channel for CPU tensors: shared memory between the ranks of one host, TCP between hosts."""

from __future__ import annotations

from typing import ClassVar

from .base import ChannelContext, ChannelSupport
from .host_channel import HostChannel
from .shm import ShmChannel

__all__ = ["AutoChannel"]


class AutoChannel(HostChannel):
    """Chooses for each pair of ranks, when they connect. A pair that cannot share memory after all uses TCP."""

    name: ClassVar[str] = "auto"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, local=context.connector.shares_host, or_else_tcp=True)

    @classmethod
    def support(cls) -> ChannelSupport:
        shm = ShmChannel.support()
        reason = "shared memory on one host, tcp between hosts" if shm.works else f"by tcp alone: {shm.reason}"
        return ChannelSupport(cls.name, True, reason)

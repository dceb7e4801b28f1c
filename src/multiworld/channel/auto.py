"""The default channel for CPU tensors, and the same where others could change what a network carries: authenticated."""

from __future__ import annotations

from typing import ClassVar

from .base import ChannelContext, ChannelSupport
from .shm import HostChannel, ShmChannel


class AutoChannel(HostChannel):
    """Shared memory between the ranks of one host, TCP between hosts: each pair chooses when it connects.

    A pair that cannot share memory after all uses TCP.
    """

    name: ClassVar[str] = "auto"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, local=context.connector.shares_host, or_else_tcp=True)

    @classmethod
    def support(cls) -> ChannelSupport:
        shm = ShmChannel.support()
        reason = "shared memory on one host, tcp between hosts" if shm.works else f"by tcp alone: {shm.reason}"
        return ChannelSupport(cls.name, True, reason)


class AuthenticatedChannel(AutoChannel):
    """Between hosts tensors go in records that verify; on one host the kernel keeps others out.

    See ``wire.connection.records``.
    """

    name: ClassVar[str] = "authenticated"
    authenticates: ClassVar[bool] = True

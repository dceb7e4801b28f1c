"""Channels: what moves tensors between the ranks of one world. These names are for those who write one.

``DataChannel`` is the interface. ``StreamChannel`` is a channel over connected stream sockets, complete but for the
sockets; ``collectives`` are the collectives over send and receive, for channels that have other means.
"""

from ..store.base import Store
from ..wire.connection.connection import Connection
from ..wire.connection.sink import ConnectionSink
from ..wire.progress.operation import Operation, StepsCancelled, drive
from ..wire.progress.thread import IOHandler, ProgressThread, Timer
from ..wire.progress.waiting import run_in_thread
from . import collectives
from .base import ChannelContext, ChannelStatistics, ChannelSupport, Connector, DataChannel, Payload
from .stream.mesh import StreamMesh
from .stream.own_socket import attach_socket
from .stream_channel.channel import StreamChannel

__all__ = [
    "ChannelContext",
    "ChannelStatistics",
    "ChannelSupport",
    "Connection",
    "ConnectionSink",
    "Connector",
    "DataChannel",
    "IOHandler",
    "Operation",
    "Payload",
    "ProgressThread",
    "StepsCancelled",
    "Store",
    "StreamChannel",
    "StreamMesh",
    "Timer",
    "attach_socket",
    "collectives",
    "drive",
    "run_in_thread",
]

"""A message stream to every other rank of a world, connected, finished and aborted together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...wire.connection.connection import Connection, read_together
from ...wire.endpoints.dialer import DialError
from ...wire.progress.loop_reader import LoopReader
from ...wire.progress.operation import Operation, drive, settled, settler
from ...wire.progress.spinning import QuickWaits
from ..base import ANY_RANK, ChannelContext, ChannelStatistics
from .any_receives import AnyReceives
from .message import Receive
from .message_stream import MessageStream
from .owner import StreamOwner

logger = logging.getLogger(__name__)


class StreamMesh(StreamOwner):
    """The lower rank of each pair dials, the higher one expects it.

    ``local`` says which ranks are dialed over a Unix socket; with ``or_else_tcp``, over TCP if that fails.
    """

    def __init__(
        self,
        context: ChannelContext,
        make_stream: Callable[[StreamOwner, int], MessageStream] | None = None,
        *,
        local: Callable[[int], bool] = lambda _: False,
        or_else_tcp: bool = False,
    ) -> None:
        super().__init__(context.world, context.generation)
        self._context = context
        self._local, self._or_else_tcp = local, or_else_tcp
        self.on_asked: Callable[[int, int, bytes], None] = lambda *_: None  # as ``StreamOwner.stream_asked``
        peers = [rank for rank in range(context.world_size) if rank != context.rank]
        make = MessageStream if make_stream is None else make_stream
        self._streams = {rank: make(self, rank) for rank in peers}
        self._quick_waits = QuickWaits()  # for all peers at once
        self.any_receives = AnyReceives(self._streams)

    @property
    def peers(self) -> list[int]:
        """All ranks but this one."""
        return list(self._streams)

    def stream(self, rank: int) -> MessageStream:
        return self._streams[rank]

    def connect(self, timeout_s: float) -> Operation[None]:
        """Connect all streams; fails with the first error."""
        return drive(self._connect(timeout_s))

    async def _connect(self, timeout_s: float) -> None:
        connector, me = self._context.connector, self._context.rank
        opening: list[Operation[Connection]] = []
        for rank, stream in self._streams.items():
            dialing = me < rank
            opening.append(self._dial(rank, stream, timeout_s) if dialing else connector.expect(rank, stream))
        for opened in opening:
            await opened

    def _dial(self, rank: int, stream: MessageStream, timeout_s: float) -> Operation[Connection]:
        connector = self._context.connector
        if not self._local(rank):
            return connector.dial(rank, stream, timeout_s=timeout_s)
        if not self._or_else_tcp:
            return connector.dial(rank, stream, timeout_s=timeout_s, local=True)
        return drive(self._dial_either(rank, stream, timeout_s))

    async def _dial_either(self, rank: int, stream: MessageStream, timeout_s: float) -> Connection:
        connector = self._context.connector
        try:
            return await connector.dial(rank, stream, timeout_s=timeout_s, local=True)
        except DialError as error:
            logger.info("world %s: rank %d is reached over TCP: %s", self.world, rank, error)
            return await connector.dial(rank, stream, timeout_s=timeout_s)

    def help(self, operation: Operation[Any], peer: int | None, timeout_s: float | None) -> None:
        """Let the calling thread read what comes from a peer, or from all: at most until the operation is done."""
        if peer is not None and peer != ANY_RANK:
            self._streams[peer].connection.read_until(operation, timeout_s)
        else:
            connections = [stream.connection for stream in self._streams.values()]
            read_together(connections, operation, timeout_s, self._quick_waits)

    def help_loop(self, reader: LoopReader, peer: int | None) -> QuickWaits | None:
        """Let an asyncio loop read what comes from a peer, or from all."""
        if peer is not None and peer != ANY_RANK:
            return self._streams[peer].connection.watch_from(reader)
        reads = [stream.connection.watch_from(reader) is not None for stream in self._streams.values()]
        return self._quick_waits if all(reads) else None

    def stream_lost(self, rank: int, reason: str) -> None:
        self._context.report_lost(rank, reason)

    def stream_failed(self, rank: int, reason: str) -> None:
        self._context.report_lost(self._context.rank, f"rank {self._context.rank} {reason}")

    def stream_asked(self, rank: int, seq: int, signature: bytes) -> None:
        self.on_asked(rank, seq, signature)

    def ask(self, seq: int, signature: bytes) -> None:
        for stream in self._streams.values():
            stream.disagree(seq, signature, asking=True)

    def contradict(self, rank: int, seq: int, signature: bytes) -> None:
        self._streams[rank].disagree(seq, signature, asking=False)

    def stream_stuck(self, rank: int, name: str) -> None:
        self.stream_failed(rank, f"gave up a {name} that was already moving data to or from rank {rank}")

    @property
    def wants_any(self) -> bool:
        return bool(self.any_receives)

    def take_any(self, rank: int, key: int) -> Receive | None:
        return self.any_receives.take(rank, key)

    def finish(self, timeout_s: float) -> Operation[None]:
        """Wait for what was sent, say BYE, and wait until every peer has read all; at most ``timeout_s``."""
        operation = drive(self._finish())
        timer = self._context.loop.call_later(timeout_s, settler(operation))
        operation.add_callback(lambda _: timer.cancel())
        return operation

    async def _finish(self) -> None:
        for stream in self._streams.values():
            # Again, as what was only announced is on its way next; but not for one that stays there though it is done.
            while unsent := [sending for sending in stream.unsent() if not sending.done]:
                for sending in unsent:
                    await settled(sending)
        ended = [stream.finish() for stream in self._streams.values()]
        for operation in ended:
            await operation

    def withdraw(self, error: Exception) -> list[Operation[Any]]:
        """Take nothing new, and take out what waits for a message or to be sent; its operations are to fail next."""
        self.any_receives.abort(error)
        return [operation for stream in self._streams.values() for operation in stream.withdraw(error)]

    @property
    def moves_beside(self) -> bool:
        """After ``withdraw``: whether data moves beside a connection, to or from the memory of a caller."""
        return any(stream.moves_beside for stream in self._streams.values())

    def abort_moving(self, error: Exception) -> None:
        """After ``withdraw``: fail what is moving data, for which its stream has to end."""
        for stream in self._streams.values():
            if stream.is_moving:
                stream.abort(error, keep_arrived=True)

    def abort(self, error: Exception, *, keep_arrived: bool = False) -> None:
        """Fail and close everything. ``keep_arrived``: messages that are complete can still be received."""
        self.any_receives.abort(error)
        for stream in self._streams.values():
            stream.abort(error, keep_arrived=keep_arrived)
        if not keep_arrived:
            self.on_asked = lambda *_: None  # by one that refers to us

    def statistics(self, num_collectives: int) -> ChannelStatistics:
        streams = self._streams.values()
        depths = [stream.queue_depths() for stream in streams]
        return ChannelStatistics(
            messages_sent=sum(stream.messages_sent for stream in streams),
            messages_received=sum(stream.messages_received for stream in streams),
            bytes_sent=sum(stream.bytes_sent for stream in streams),
            bytes_received=sum(stream.bytes_received for stream in streams),
            collectives=num_collectives,
            receives_waiting=sum(depth[0] for depth in depths) + len(self.any_receives),
            messages_waiting=sum(depth[1] for depth in depths),
            sends_waiting=sum(depth[2] for depth in depths),
        )

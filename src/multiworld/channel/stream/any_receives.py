"""Receives from whichever rank has a message, over the message streams of one world.

A receive waits in one place for all streams. Under its own read side, a stream that has a message without a receive
takes the oldest of them: then it is that stream's like any other, and the message for it is there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ...wire.progress.operation import Operation, StepsCancelled, drive
from .any_source import AnySource
from .message import USER, Receive, key_of
from .message_stream import MessageStream


class AnyReceives:
    """Those of one world. ``abort`` may come from any thread, and ``take`` comes from inside the streams."""

    def __init__(self, streams: Mapping[int, MessageStream]) -> None:
        self._streams = streams
        self._source: AnySource[Receive] = AnySource(list(streams))
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._slow_cancel_bytes = min((stream.slow_cancel_bytes for stream in streams.values()), default=0)

    def __bool__(self) -> bool:
        """Whether receives wait. Any thread."""
        return bool(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def recv(self, tag: int, meta: bytes, tensor: Tensor) -> Operation[int]:
        """Receive into ``tensor``, whose description is ``meta``; done with the rank that sent it."""
        operation: Operation[int] = Operation()
        receive = Receive(operation, USER, meta, tensor)  # type: ignore[arg-type]
        key = key_of(USER, tag)
        operation.on_cancel = partial(self._cancel, receive, key)
        operation.slow_cancel = tensor.nbytes > self._slow_cancel_bytes
        with self._lock:
            ranks = self._source.post(key, receive)  # first: what comes after a stream has looked finds it
        try:
            looking = drive(self._look(receive, key, ranks))
            looking.add_callback(lambda _: self._looked(receive, key))
        except BaseException:  # an interrupt: nobody will know the operation, and its tensor must be left alone
            operation.cancel(StepsCancelled())
            raise
        return operation

    def take(self, rank: int, key: int) -> Receive | None:
        """Return the receive that gets the message of a rank which waits for one."""
        if key not in self._source:
            return None
        with self._lock:
            receive = self._source.take(key, rank)
            if receive is not None:
                receive.source = rank
        return receive

    def abort(self, error: Exception) -> None:
        """Fail all that have no message. A receive that is issued afterwards gets what is here already, or fails."""
        with self._lock:
            self._error = error
            receives = self._source.withdraw_all()
        for receive in receives:
            receive.operation.fail(error)

    async def _look(self, receive: Receive, key: int, ranks: list[int]) -> None:
        """One stream after the other, each when its read side is free: else a busy one would lose its turns."""
        for rank in ranks:
            if receive.source is not None or receive.operation.done:
                return
            await self._streams[rank].offer(key)

    def _looked(self, receive: Receive, key: int) -> None:
        error = self._error
        if error is None:
            return
        with self._lock:
            waits = self._source.withdraw(key, receive)
        if waits:
            receive.operation.fail(error)

    def _cancel(self, receive: Receive, key: int) -> None:
        with self._lock:
            self._source.withdraw(key, receive)
            rank = receive.source
        if rank is not None:
            self._streams[rank].detach(receive)

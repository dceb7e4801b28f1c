"""Two streams of one process over a Unix socket and shared memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.channel.payload.tensors import describe, memory_of
from multiworld.channel.shared_memory.host_memory import HostMemory
from multiworld.channel.stream.message import USER
from multiworld.channel.stream.owner import StreamOwner
from multiworld.channel.stream.shared_stream import SharedStream
from multiworld.testing import scaled, wait_until
from multiworld.wire.connection.connection import Connection
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking


class Pair:
    """The streams of two ranks. What ``here`` sends, ``there`` may receive."""

    def __init__(self) -> None:
        self.loops = [ProgressThread(f"test-shared-stream-{rank}") for rank in range(2)]
        self.memories = [HostMemory("w", rank, 2) for rank in range(2)]
        self.here, self.there = (SharedStream(StreamOwner("w", 1), 1 - rank, self.memories[rank]) for rank in range(2))
        self.streams = self.here, self.there
        for stream, loop, sock in zip(self.streams, self.loops, socket.socketpair(), strict=True):
            Connection(loop, sock, stream).hand_over(stream)

    def lend(self) -> None:
        for memory in self.memories:
            memory.offer()
            assert wait_until(lambda memory=memory: memory.ready(1 - memory.rank) is not None, 10)  # type: ignore[misc]

    def send(self, tensor: Tensor, tag: int = 0) -> Operation[None]:
        return self.here.send(USER, tag, describe(tensor), [memory_of(tensor)], [tensor])

    def recv(self, tensor: Tensor, tag: int = 0) -> Operation[Payload]:
        return self.there.recv(USER, tag, describe(tensor), tensor)

    def answer(self) -> None:
        """Wait until all that ``there`` has said so far has come ``here``."""
        tensor = torch.zeros(1)
        came = self.here.recv(USER, 99, describe(tensor), tensor)
        wait_blocking(self.there.send(USER, 99, describe(tensor), [memory_of(tensor)], [tensor]))
        wait_blocking(came)

    def stop_reading(self, stream: SharedStream | None = None) -> Callable[[], None]:
        """Let ``there``, or another stream, read nothing until the returned function is called."""
        stream = stream or self.there
        resumed = threading.Event()
        stopped = threading.Event()

        def hold() -> None:
            stopped.set()
            resumed.wait(scaled(20))

        holder = threading.Thread(target=stream.connection.run_and_wait, args=(hold,))
        holder.start()
        assert stopped.wait(scaled(5))

        def resume() -> None:
            resumed.set()
            holder.join()

        return resume

    def close(self) -> None:
        for stream, memory, loop in zip(self.streams, self.memories, self.loops, strict=True):
            stream.abort(RuntimeError("the test is over"))
            memory.close(RuntimeError("the test is over"))
            loop.stop()

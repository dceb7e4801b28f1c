"""Messages of bytes with one tag. Received while the thread that works on them is busy: it reads only when it waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from ..channel.payload.small_message import Received, SmallMessage
from ..channel.payload.tensors import memory_of
from ..errors import MultiworldError, RequestCancelledError, again
from ..wire.progress.operation import Operation
from ..world.world import World


class Lane:
    """All methods from one thread; what comes is collected on any."""

    def __init__(self, world: World, tag: int, peer: int) -> None:
        self._world, self._peer = world, peer
        self._came: deque[memoryview] = deque()
        self._error: Exception | None = None  # before it listens: a world may be broken already
        self._last = listen(world, tag, peer, self._came.append, self._ended)

    def next(self) -> memoryview:
        """Block until a message has come, and return its bytes. Raises the error of a world that is broken."""
        while True:
            receive = self._last.present  # looked at first: once it is another one, the message of this one has come
            if self._came:
                return self._came.popleft()
            if self._error is not None:
                raise self._error if not isinstance(self._error, MultiworldError) else again(self._error)
            if receive is not None:
                self._world.wait_for(receive, self._peer, None)

    def close(self) -> None:
        """Nothing more comes: do not wait for it."""
        receive = self._last.present
        if receive is not None:
            receive.cancel(RequestCancelledError(self._world.name, self._world.generation, "a lane"))

    def _ended(self, error: Exception) -> None:
        self._error = error


class Listener:
    """``present``: the receive that waits for the next message; None once there is none any more."""

    def __init__(
        self,
        world: World,
        tag: int,
        peer: int,
        take: Callable[[memoryview], object],
        ended: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        self.present: Operation[Received] | None = None
        self._world, self._tag, self._peer, self._take_message, self._ended = world, tag, peer, take, ended

    def post(self) -> None:
        """Take what is there already, then wait for more."""
        while True:
            try:
                receive = self._world.start_recv_bytes(self._peer, self._tag, None)
            except MultiworldError as error:
                self._end(error)
                return
            if not receive.done:
                self.present = receive
                receive.add_callback(self._came)
                return
            if not self._take(receive):
                return

    def _came(self, receive: Operation[Received]) -> None:
        """On whichever thread the message came."""
        if self._take(receive):
            self.post()

    def _take(self, receive: Operation[Received]) -> bool:
        error = receive.error
        if error is not None:
            self._end(error if isinstance(error, Exception) else RuntimeError(str(error)))
            return False
        self._take_message(bytes_of(receive.result()))
        return True

    def _end(self, error: Exception) -> None:
        self._ended(error)
        self.present = None


def listen(
    world: World,
    tag: int,
    peer: int,
    take: Callable[[memoryview], object],
    ended: Callable[[Exception], object] = lambda error: None,
) -> Listener:
    """Call ``take`` with each message of that tag, on the thread on which it comes. It must be quick.

    ``ended`` is called once, with the error that ended it.
    """
    listener = Listener(world, tag, peer, take, ended)
    listener.post()
    return listener


def send(world: World, packed: bytearray, peer: int, tag: int) -> None:
    """Send bytes as one message, at once where the channel can do so. Raises the error of a world that is broken."""
    if not world.send_bytes(packed, peer, tag):
        world.start_send_tensors(torch.frombuffer(packed, dtype=torch.uint8), peer, tag, None)


def bytes_of(received: Received) -> memoryview:
    """Return the memory of a message of bytes. Raises TypeError for another one."""
    if isinstance(received, SmallMessage):
        return received.memory
    if not isinstance(received, Tensor):
        raise TypeError(f"a message of bytes is needed, not {type(received).__name__}")
    return memoryview(bytearray(memory_of(received)))

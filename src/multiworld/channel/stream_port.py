"""The messages of one collective call over the streams of a world."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import MultiworldError
from ..wire import futex
from ..wire.operation import Operation, StepsCancelled
from ..wire.waiting import is_blocked_here
from .base import ChannelContext
from .collectives import Barrier, MessageBarrier, SharedSpace, dissemination_max
from .flags import FlagBarrier, Waiter
from .host_memory import HostMemory
from .mesh import StreamMesh
from .stream import COLLECTIVE
from .tensors import memory_of

__all__ = ["StreamPort"]

T = TypeVar("T")
INLINE_COMPUTE_BYTES = 64 * 1024
AGREEMENT_SEQ = 0  # collectives are numbered from 1
_NOTHING_SHARED: Operation[SharedSpace | None] = Operation()
_NOTHING_SHARED.succeed(None)


class StreamPort:
    """The send and receive of one collective call; implements ``collectives.Port``."""

    def __init__(
        self, context: ChannelContext, mesh: StreamMesh, seq: int, signature: bytes, memory: HostMemory | None
    ) -> None:
        self.rank, self.size = context.rank, context.world_size
        self._context, self._mesh, self._seq, self._signature = context, mesh, seq, signature
        self._memory = memory
        self._thread = threading.get_ident() if is_blocked_here() else 0  # that made the call and waits for its end
        self.operation: Operation[None] | None = None
        """The whole call, once it has begun."""
        self._barrier: FlagBarrier | None = None
        self._turn: Operation[SharedSpace | None] | None = None
        self._open: set[Operation[Any]] = set()

    def send(self, tensor: Tensor, dst: int) -> Operation[None]:
        stream = self._mesh.stream(dst)
        return self._track(stream.send(COLLECTIVE, self._seq, self._signature, [memory_of(tensor)], [tensor]))

    def recv(self, tensor: Tensor, src: int) -> Operation[None]:
        operation = self._mesh.stream(src).recv(COLLECTIVE, self._seq, self._signature, tensor)
        return self._track(operation)  # type: ignore[arg-type]

    def share(self) -> Operation[SharedSpace | None]:
        if self._memory is None:
            return _NOTHING_SHARED
        agreement = StreamPort(self._context, self._mesh, AGREEMENT_SEQ, b"shared memory", None)
        self._turn = self._memory.take_area(agreement)
        return self._track(self._turn)

    async def barrier(self) -> Barrier:
        memory = self._memory
        if memory is None or not futex.WORKS:
            barrier = MessageBarrier(self)
            await barrier.meet()
            return barrier
        agreed = torch.tensor([self._thread == 0, memory.count])
        await dissemination_max(self, agreed)
        is_anyone_busy, count = agreed.tolist()
        if is_anyone_busy:
            return MessageBarrier(self)
        self._barrier = memory.flag_barrier(Waiter(self._seq, self._thread, self._check, self._gave_up), count)
        return self._barrier

    def _check(self) -> None:
        """Raise what ended this call while it waits in shared memory."""
        assert self._memory is not None
        self._memory.check()
        if self.operation is not None and self.operation.is_cancelled:
            raise StepsCancelled

    def _gave_up(self, rank: int) -> Exception:
        return self._mesh.stream(rank).gave_up(self._signature)

    def compute(self, work: Callable[[], None], size_bytes: int) -> Operation[None]:
        if size_bytes > INLINE_COMPUTE_BYTES and self._thread != threading.get_ident():
            return self._track(self._context.compute(work))
        operation: Operation[None] = Operation()
        try:
            work()
        except Exception as error:  # the reduction's own error belongs to the caller of the collective
            operation.fail(error)
        else:
            operation.succeed(None)
        return operation

    def close(self, collective: Operation[None]) -> None:
        """The call is over. If it failed, nothing of it may touch the caller's tensors or hold up the peers."""
        if collective.error is not None:
            for operation in list(self._open):
                operation.cancel(_GivenUp())
            for peer in self._mesh.peers:
                self._mesh.stream(peer).give_up(self._seq)
        memory = self._memory
        if memory is not None and self._barrier is not None:
            memory.count = self._barrier.count
            if collective.error is not None:
                memory.give_up(self._seq)
        if memory is not None and self._turn is not None:
            memory.leave_area(self._turn)

    def _track(self, operation: Operation[T]) -> Operation[T]:
        if not operation.done:
            self._open.add(operation)
            operation.add_callback(self._open.discard)
        return operation


class _GivenUp(MultiworldError):
    """Ends the parts of a collective that failed as a whole."""

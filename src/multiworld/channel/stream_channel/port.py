"""The messages of one collective call over the streams of a world, and its use of the memory that the ranks share."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import MultiworldError, WorldBrokenError, WorldClosedError
from ...wire.progress.operation import Operation, StepsCancelled
from ...wire.progress.waiting import is_blocked_here, running_loop
from ..base import ChannelContext
from ..collectives.port import SharedWork
from ..shared_memory.shared_area import SharedArea, Turn
from ..shared_memory.shared_call import SharedCall
from ..stream.mesh import StreamMesh
from ..stream.message import COLLECTIVE

T = TypeVar("T")
INLINE_COMPUTE_BYTES = 64 * 1024
LOOP_BYTES = 4 * 1024 * 1024
"""What an asyncio loop works on before its other tasks get their turn: a millisecond, less than two threads cost."""


class Gates:
    """Where calls wait that threads have made which block in them: they go on there, once those threads wait."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Operation[None]]] = defaultdict(list)

    def wait_here(self) -> Operation[None]:
        gate: Operation[None] = Operation()
        self._waiting[threading.get_ident()].append(gate)
        return gate

    def open_here(self) -> None:
        """On a thread that waits: let the calls that it made go on, on it."""
        for gate in self._waiting.pop(threading.get_ident(), ()):
            gate.succeed(None)


class StreamPort:
    """The send and receive of one collective call; implements ``collectives.Port`` and ``shared_call.CallContext``."""

    def __init__(
        self,
        context: ChannelContext,
        mesh: StreamMesh,
        seq: int,
        signature: bytes,
        area: SharedArea | None = None,
        turn: Turn | None = None,
        gates: Gates | None = None,
        pairs: tuple[list[bytes], list[bytes]] | None = None,
    ) -> None:
        """``turn`` is reserved in the ``area``.

        ``pairs``: what is agreed with each rank alone, on what is sent to it, and on what comes from it.
        """
        self.rank, self.size = context.rank, context.world_size
        self._context, self._mesh, self._seq, self._signature = context, mesh, seq, signature
        self._area, self._turn, self._gates = area, turn, gates
        self._pairs = pairs
        self._thread = threading.get_ident() if is_blocked_here() else 0  # that made the call and waits for its end
        self.operation: Operation[None] | None = None
        """The whole call, once it has begun."""
        self._is_closed = False
        self._call: SharedCall | None = None
        self._open: set[Operation[Any]] = set()

    def send(self, tensor: Tensor, dst: int) -> Operation[None]:
        stream = self._mesh.stream(dst)
        signature = self._signature if self._pairs is None else self._pairs[0][dst]
        return self._track(stream.send_tensor(COLLECTIVE, self._seq, signature, tensor))

    def recv(self, tensor: Tensor, src: int) -> Operation[None]:
        signature = self._signature if self._pairs is None else self._pairs[1][src]
        operation = self._mesh.stream(src).recv(COLLECTIVE, self._seq, signature, tensor)
        return self._track(operation)  # type: ignore[arg-type]

    async def share(self, work: SharedWork, size_bytes: int) -> bool:
        area, turn = self._area, self._turn
        if area is None or turn is None:
            return False
        taken = area.take(turn)
        is_first = taken.done
        if not await self._track(taken):
            return False
        may_block = True
        if is_first and self._gates is not None and self._thread:  # else its thread may be waiting already
            await self._track(self._gates.wait_here())
        elif is_first and size_bytes <= (INLINE_COMPUTE_BYTES if running_loop() is None else LOOP_BYTES):
            may_block = False
        else:
            await area.on_own_thread()
        self._call = call = SharedCall(area, self, self._seq, self._signature)
        call.thread = threading.get_ident() if may_block else 0
        await call.begin()
        await work(call)
        return True

    def check(self) -> None:
        assert self._area is not None
        self._area.check()
        if self.operation is not None and self.operation.is_cancelled:
            raise StepsCancelled

    def expect_nothing(self, rank: int) -> Operation[None]:
        return self.recv(torch.empty(0, dtype=torch.uint8), rank)

    def mismatch(self, rank: int, signature: bytes) -> Exception:
        return self._mesh.stream(rank).differs(self._signature, signature)

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

    @property
    def shares(self) -> bool:
        """Whether the call uses the memory that the ranks share, or would like to."""
        return self._turn is not None and self._turn.is_wanted

    def close(self, collective: Operation[None]) -> None:
        """The call is over."""
        self.end(collective.error)

    def end(self, error: BaseException | None) -> None:
        """If the call failed, nothing of it may touch the caller's tensors or hold up the peers.

        With the world, it fails everywhere. A peer that was told that we gave up before it knows why would take it for
        our disagreement.
        """
        self._is_closed = True
        gives_up = error is not None and not isinstance(error, WorldBrokenError | WorldClosedError)
        if error is not None:
            for operation in list(self._open):
                operation.cancel(_GivenUp())
        elif self._call is not None:
            self._call.end(_GivenUp())
        for peer in self._mesh.peers if gives_up else ():
            self._mesh.stream(peer).give_up(self._seq)
        self._call = None  # which refers to us: the memory must not wait for the garbage collector
        if self._area is not None and self._turn is not None:
            self._area.leave(self._turn, failed=gives_up)

    def _track(self, operation: Operation[T]) -> Operation[T]:
        if not operation.done:
            self._open.add(operation)
            operation.add_callback(self._open.discard)
            if self._is_closed:  # in this moment, by another thread
                operation.cancel(_GivenUp())
        return operation


class _GivenUp(MultiworldError):
    """Ends the parts of a collective that failed as a whole."""

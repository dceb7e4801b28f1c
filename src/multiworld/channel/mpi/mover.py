"""Move payloads to and from one peer over MPI, in chunks that are copied out of and into the callers' tensors.

The copies cost some of the speed. In return an operation lets go of its tensor whenever it has to, within the time of
one copy, whatever the peer and MPI do: so nothing that is cancelled or aborted here waits, or costs the world.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ...errors import ProtocolError
from ...wire.memory.copying import copy_into
from ...wire.progress.operation import Operation
from ..payload.tensors import memory_of, segments_of
from .chunks import HEADER_BYTES, PROOF, Chunk, new_key, write_header
from .pump import MpiError, Sink, Source

OnOver = Callable[[Exception | None], None]
NO_THREAD = "no thread can be started that moves payloads over MPI"


class Pump(Protocol):
    """What a mover needs of an ``MpiPump``."""

    def attach(self, key: bytes, sink: Sink) -> None: ...

    def detach(self, key: bytes) -> None: ...

    def send(self, source: Source) -> bool: ...

    def expect(self) -> bool: ...

    def settled(self, number: int = 1) -> None: ...


class _Route:
    """Where a mover's chunks go."""

    def __init__(self, destination: int, key: bytes) -> None:
        self.destination, self.key = destination, key
        self.wanted = True  # until the mover is closed


class _Routed:
    """What goes along a route: the part of a ``Source`` that says where to, and whether it still may."""

    __slots__ = ()
    _route: _Route

    @property
    def destination(self) -> int:
        return self._route.destination

    @property
    def wanted(self) -> bool:
        return self._route.wanted


class _Transfer:
    """One payload. Its memory is touched by whoever holds ``turn``, and only until it has ``ended``."""

    __slots__ = ("ended", "number", "on_over", "tensors", "turn")

    def __init__(self, number: int, tensors: list[Tensor], on_over: OnOver) -> None:
        self.number, self.tensors, self.on_over = number, tensors, on_over
        self.turn = threading.Lock()
        self.ended = False

    def let_go(self) -> bool:
        """Touch the memory no more. False if that was over already."""
        with self.turn:
            first, self.ended = not self.ended, True
        return first


class _Outgoing(_Routed, _Transfer):
    """What is sent; ``offset`` is where ``segments`` begin in the payload."""

    __slots__ = ("_forget", "_has_failed", "_route", "_segments", "_size_bytes", "offset")

    def __init__(
        self,
        number: int,
        tensors: list[Tensor],
        size_bytes: int,
        on_over: OnOver,
        route: _Route,
        forget: Callable[[_Transfer], bool],
    ) -> None:
        super().__init__(number, tensors, on_over)
        self._segments = segments_of(tensors, size_bytes)
        self._size_bytes, self._route, self._forget = size_bytes, route, forget
        self.offset = 0
        self._has_failed = False

    def fill(self, buffer: memoryview) -> int | None:
        if not self.turn.acquire(blocking=False):
            return None  # somebody copies much of it, and this thread has other worlds to serve
        try:
            if self.ended:
                return 0
            write_header(buffer, self._route.key, self.number, self.offset)
            num_bytes = self._read(buffer[HEADER_BYTES:])
            self.ended = self.offset == self._size_bytes
        finally:
            self.turn.release()
        if self.ended and self._forget(self):
            self.on_over(None)
        return HEADER_BYTES + num_bytes

    def failed(self, error: Exception) -> None:
        """What was copied may be lost, too: chunks that are still on their way when a send is over."""
        self.let_go()
        first, self._has_failed = not self._has_failed, True
        if first and (self._forget(self) or self._route.wanted):
            self.on_over(error)

    def copy_rest(self) -> None:
        """Go on from a copy of what is still to be sent."""
        with self.turn:
            if self.ended:
                return
            rest = torch.empty(self._size_bytes - self.offset, dtype=torch.uint8)
            at = self.offset
            self._read(memory_of(rest))
            self.offset = at
            self._segments, self.tensors = [memory_of(rest)], [rest]

    def _read(self, target: memoryview) -> int:
        """Copy what comes next, as much as there is room for; return how much that was."""
        num_bytes = 0
        while num_bytes < len(target) and self._segments:
            segment = self._segments[0]
            part = segment[: len(target) - num_bytes]
            copy_into(target[num_bytes : num_bytes + len(part)], part)
            num_bytes += len(part)
            if len(part) < len(segment):
                self._segments[0] = segment[len(part) :]
            else:
                del self._segments[0]
        self.offset += num_bytes
        return num_bytes


class _Incoming(_Transfer):
    """What is received. Chunks may come in any order; none comes twice."""

    __slots__ = ("_end", "_num_received", "_target")

    def __init__(self, number: int, tensor: Tensor, on_over: OnOver) -> None:
        super().__init__(number, [tensor], on_over)
        self._target = memory_of(tensor)
        self._num_received = self._end = 0

    def take(self, chunk: Chunk) -> bool | None:
        """Return whether that was the last. None: not now. Raises ProtocolError for what is not part of it."""
        if not self.turn.acquire(blocking=False):
            return None  # as in ``_Outgoing.fill``
        try:
            if self.ended:
                return False
            end = chunk.offset + len(chunk.data)
            if not chunk.data or end > len(self._target):
                raise ProtocolError(f"bytes {chunk.offset} to {end} of a payload of {len(self._target)} came over MPI")
            copy_into(self._target[chunk.offset : end], chunk.data)
            self._num_received += len(chunk.data)
            self._end = max(self._end, end)
            self.ended = self._num_received == len(self._target)
            return self.ended
        finally:
            self.turn.release()

    def divert(self, tensor: Tensor) -> bool:
        with self.turn:
            if self.ended:
                return False
            target = memory_of(tensor)
            copy_into(target[: self._end], self._target[: self._end])
            self._target, self.tensors = target, [tensor]
            return True


class _Proof(_Routed):
    """An empty chunk, by which the peer sees that it hears this process over MPI."""

    def __init__(self, route: _Route, failed: Callable[[Exception], None]) -> None:
        self._route, self.failed = route, failed
        self._sent = False

    def fill(self, buffer: memoryview) -> int | None:
        if self._sent:
            return 0
        self._sent = True
        write_header(buffer, self._route.key, PROOF, 0)
        return HEADER_BYTES


class MpiMover:
    """Implements ``moving.PayloadMover``, and is the sink of its chunks.

    ``open`` and ``meet`` come before all payloads. ``defer`` runs a callback soon, on another thread.
    """

    def __init__(self, defer: Callable[[Callable[[], None]], object]) -> None:
        self.key = new_key()
        self.proved: Operation[None] = Operation()
        """Done when the peer was heard over MPI."""
        self._defer = defer
        self._lock = threading.Lock()
        self._sends: dict[int, _Transfer] = {}
        self._receives: dict[int, _Transfer] = {}
        self._pump: Pump | None = None
        self._route = _Route(-1, b"")
        self._closed = False
        self._left: list[_Transfer] = []
        self._released = threading.Event()

    def open(self, pump: Pump) -> None:
        """From now on the peer may send to our key."""
        with self._lock:
            if self._closed:
                return
            self._pump = pump
            pump.attach(self.key, self)
        self._expect(self._refuse_proof)
        self.proved.add_callback(lambda _: pump.settled())

    def meet(self, rank: int, key: bytes) -> None:
        """The peer has that rank in the MPI job, and its mover has that key: let it hear us."""
        self._route.destination, self._route.key = rank, key
        pump = self._pump
        if pump is not None:
            pump.send(_Proof(self._route, self._refuse_proof))

    # ---- the stream's side

    def prepare(self) -> bool:
        return True  # ``join`` has connected it

    def send(self, number: int, tensors: list[Tensor], size_bytes: int, on_over: OnOver) -> bool:
        transfer = _Outgoing(number, tensors, size_bytes, on_over, self._route, self._forget)
        with self._lock:
            if self._closed:
                return False
            self._sends[number] = transfer
        if not self._opened.send(transfer):
            self._defer(partial(self._refuse_send, transfer))
        return True

    def _refuse_send(self, transfer: _Outgoing) -> None:
        """Nobody has sent it, unless a thread could be started for another one meanwhile."""
        transfer.let_go()
        if self._forget(transfer):
            transfer.on_over(MpiError(NO_THREAD))

    def recv(self, number: int, tensor: Tensor, on_over: OnOver) -> bool:
        transfer = _Incoming(number, tensor, on_over)
        with self._lock:
            if self._closed:
                return False
            self._receives[number] = transfer
        self._expect(partial(self._fail_receive, transfer))
        return True

    def sent(self, number: int) -> None:
        """A send is over before: when all of it was copied."""

    def copy_unsent(self, number: int) -> bool:
        with self._lock:
            transfer = self._sends.get(number)
        if isinstance(transfer, _Outgoing):
            try:
                transfer.copy_rest()
            except (RuntimeError, MemoryError) as error:  # there is no memory for that, and the peer waits for the rest
                transfer.failed(MpiError(f"the rest of a cancelled send cannot be copied: {error}"))
        return True

    def divert(self, number: int, tensor: Tensor) -> bool:
        with self._lock:
            transfer = self._receives.get(number)
        return isinstance(transfer, _Incoming) and transfer.divert(tensor)

    def wait_closed(self, timeout_s: float) -> bool:
        return self._released.wait(timeout_s)

    # ---- the pump's side

    @property
    def origin(self) -> int:
        return self._route.destination

    def take(self, chunk: Chunk) -> bool:
        if chunk.number == PROOF:
            self.proved.succeed(None)
            return True
        with self._lock:
            transfer = self._receives.get(chunk.number)
            if transfer is None:
                return self._closed  # else its header is still on the way
        assert isinstance(transfer, _Incoming)
        try:
            is_last = transfer.take(chunk)
        except ProtocolError as error:
            self._fail_receive(transfer, error)
            return True
        if is_last and self._forget(transfer):
            transfer.on_over(None)
        return is_last is not None

    def failed(self, error: Exception) -> None:
        self._refuse_proof(error)
        with self._lock:
            receives = list(self._receives.values())
        for transfer in receives:
            self._fail_receive(transfer, error)

    # ---- the end

    def close(self, error: Exception) -> None:
        """Touch no tensor any more; whoever waits for the proof gets ``error``.

        Idempotent; waits at most for a copy that is being made.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._route.wanted = False
            self._left = [*self._sends.values(), *self._receives.values()]
            num_receives = len(self._receives)
            self._sends.clear()
            self._receives.clear()
        for transfer in self._left:
            transfer.let_go()
        self._released.set()
        if self._pump is not None:
            self._pump.detach(self.key)
            self._pump.settled(num_receives)
            self._refuse_proof(error)

    def release(self, error: Exception) -> None:
        """End what was left with an error. After ``close``."""
        left, self._left = self._left, []
        for transfer in left:
            transfer.on_over(error)

    @property
    def _opened(self) -> Pump:
        assert self._pump is not None, "used before it was opened"
        return self._pump

    def _expect(self, fail: Callable[[Exception], None]) -> None:
        if not self._opened.expect():
            self._defer(partial(fail, MpiError(NO_THREAD)))

    def _refuse_proof(self, error: Exception) -> None:
        self.proved.fail(error)

    def _fail_receive(self, transfer: _Transfer, error: Exception) -> None:
        transfer.let_go()
        if self._forget(transfer):
            transfer.on_over(error)

    def _forget(self, transfer: _Transfer) -> bool:
        """It is over. False if somebody else has said so, or will."""
        with self._lock:
            for transfers in (self._sends, self._receives):
                if transfers.get(transfer.number) is transfer:
                    del transfers[transfer.number]
                    break
            else:
                return False
        if isinstance(transfer, _Incoming):
            self._opened.settled()
        return True

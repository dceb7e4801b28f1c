"""Move payloads to and from one peer over NCCL: one communicator of two ranks for each direction.

The operations of one communicator run one after the other, so two processes that send to each other on the same one
would both wait for ever. In a communicator that has one direction only, the payloads follow each other in the order of
their headers, which both sides know. It is connected when the first payload goes that way, by a thread of its own: the
peer has the header, or has announced it, so both are there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from ...wire.progress.waiting import run_in_thread
from ..payload.tensors import as_bytes, pack
from .cuda_order import StreamOrder
from .group import OnOver, Start

SENDER, RECEIVER = 0, 1  # the ranks in a communicator of one direction


class PairGroup(Protocol):
    """What a mover needs of an ``NcclGroup``."""

    def connect(self, store: Any) -> None: ...

    def launch(self, after: Sequence[Any], start: Start, on_over: OnOver) -> bool: ...


class _Transfer:
    """One payload. ``tensors`` are replaced by copies when a send is cancelled before it is launched."""

    __slots__ = ("_lock", "_on_over", "launched", "number", "payload", "size_bytes", "tensors")

    def __init__(self, number: int, tensors: list[Tensor], size_bytes: int, on_over: OnOver) -> None:
        self.number, self.tensors, self.size_bytes = number, tensors, size_bytes
        self.payload: Tensor | None = None
        self.launched = False
        self._on_over: OnOver | None = on_over
        self._lock = threading.Lock()

    def as_one(self) -> Tensor:
        """Return the payload as ``[size_bytes]`` uint8. On the stream that moves it."""
        single = len(self.tensors) == 1 and self.tensors[0].nbytes == self.size_bytes
        self.payload = as_bytes(self.tensors[0]) if single else pack(self.tensors, self.size_bytes)
        return self.payload

    def end(self, error: Exception | None) -> None:
        """Tell the end, unless it was told before."""
        with self._lock:
            on_over, self._on_over = self._on_over, None
        self.payload = None
        if on_over is not None:
            on_over(error)


class _Direction:
    """The payloads of one direction, launched in the order in which they were put."""

    def __init__(
        self, group: PairGroup, store: Callable[[], Any], order: StreamOrder, name: str, *, sending: bool
    ) -> None:
        self._group, self._store, self._order, self._name, self._sending = group, store, order, name, sending
        self._lock = threading.Lock()
        self._transfers: dict[int, _Transfer] = {}  # until they are over
        self._waiting: list[_Transfer] = []  # for the connection
        self._connecting = self._connected = self._closed = False

    def tensors(self) -> list[Tensor]:
        """Return what may still be touched."""
        with self._lock:
            transfers = list(self._transfers.values())
        return [
            tensor for transfer in transfers for tensor in (*transfer.tensors, transfer.payload) if tensor is not None
        ]

    def put(self, transfer: _Transfer) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._transfers[transfer.number] = transfer
            if self._connected:
                self._launch(transfer)
                return True
            self._waiting.append(transfer)
            first, self._connecting = not self._connecting, True
        if first:
            run_in_thread(self._connect, f"{self._name}-connect")
        return True

    def copy_unlaunched(self, number: int) -> bool:
        with self._lock:
            transfer = self._transfers.get(number)
            if transfer is None or transfer.launched:
                return transfer is None
            copies = self._order.copy(transfer.tensors)
            if copies is not None:
                transfer.tensors = copies
            return copies is not None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def release(self, error: Exception) -> None:
        with self._lock:
            left = list(self._transfers.values())
            self._transfers.clear()
        for transfer in left:
            transfer.end(error)

    def _connect(self) -> None:
        """Tell ends here and not in a callback, which might run inside ``put``, where its caller holds locks."""
        error: Exception | None = None
        try:
            self._group.connect(self._store())
        except Exception as raised:  # whatever the library raises belongs to those who wait for it
            error = RuntimeError(f"NCCL could not connect: {raised}")
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._connected = error is None
            for transfer in waiting if error is None else ():
                self._launch(transfer)
        for transfer in waiting if error is not None else ():
            self._over(transfer, error)  # what comes later waits for the end of the world, which this brings about

    def _launch(self, transfer: _Transfer) -> None:
        """Refused: the group is closed, and ``release`` ends it."""
        start, on_over = partial(self._start, transfer), partial(self._over, transfer)
        self._group.launch(self._order.events(transfer.tensors), start, on_over)

    def _start(self, transfer: _Transfer, group: Any) -> Any:
        with self._lock:
            transfer.launched = True
        payload = transfer.as_one()
        if self._sending:
            return group.send([payload], RECEIVER, 0)
        return group.recv([payload], SENDER, 0)

    def _over(self, transfer: _Transfer, error: Exception | None) -> None:
        with self._lock:
            if self._transfers.get(transfer.number) is transfer:
                del self._transfers[transfer.number]
        transfer.end(error)


class NcclMover:
    """Implements ``moving.PayloadMover``. A send is over when the device has read it; the peer may not have it yet."""

    def __init__(
        self,
        outgoing: PairGroup,
        incoming: PairGroup,
        outgoing_store: Callable[[], Any],
        incoming_store: Callable[[], Any],
        order: StreamOrder,
        name: str,
    ) -> None:
        self._sends = _Direction(outgoing, outgoing_store, order, f"{name}-out", sending=True)
        self._receives = _Direction(incoming, incoming_store, order, f"{name}-in", sending=False)
        self._released = threading.Event()

    def prepare(self) -> bool:
        return True  # what comes before the connection waits for it

    def send(self, number: int, tensors: list[Tensor], size_bytes: int, on_over: OnOver) -> bool:
        return self._sends.put(_Transfer(number, tensors, size_bytes, on_over))

    def recv(self, number: int, tensor: Tensor, on_over: OnOver) -> bool:
        return self._receives.put(_Transfer(number, [tensor], tensor.nbytes, on_over))

    def sent(self, number: int) -> None:
        """Its own work tells the end of a send."""

    def copy_unsent(self, number: int) -> bool:
        return self._sends.copy_unlaunched(number)

    def tensors(self) -> list[Tensor]:
        """Return what may still be touched."""
        return self._sends.tensors() + self._receives.tensors()

    def divert(self, number: int, tensor: Tensor) -> bool:
        return False  # the library has the caller's memory

    def close(self) -> None:
        """Take nothing more. Idempotent, never blocks."""
        self._sends.close()
        self._receives.close()

    def wait_closed(self, timeout_s: float) -> bool:
        return self._released.wait(timeout_s)

    def let_go(self) -> None:
        """The groups touch no memory any more."""
        self._released.set()

    def release(self, error: Exception) -> None:
        """End what is left with an error. After ``close``, and after ``let_go`` unless that never comes."""
        self._sends.release(error)
        self._receives.release(error)

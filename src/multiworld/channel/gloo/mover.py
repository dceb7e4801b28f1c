"""Move payloads to and from one peer over Gloo; none of it can stay behind when the peer is gone.

Gloo does not fail an operation whose data has come or gone in part when its connection ends: whoever waits for it waits
for ever. So nobody waits for a payload. Behind each one an empty message follows, the *tail*, which arrives when the
payload is complete, or fails with the connection; the receiver waits for that. It tells the sender over our own
connection (``sent``), which is when the sender's memory is free.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..payload.tensors import pack
from ..threads import SerialThread

logger = logging.getLogger(__name__)

FOREVER = timedelta(days=365)  # a world decides who is alive; no timeout of a process group does
NUM_TAGS = 2**31 - 2
DIRECT_BYTES = 16 * 1024 * 1024  # moved in a few milliseconds, and that is the longest that a caller waits for the lock
_TAIL = torch.empty(0, dtype=torch.uint8)

OnOver = Callable[[Exception | None], None]


class PointToPoint(Protocol):
    """What a mover needs of a process group. While that connects, ``send`` and ``recv`` wait for it.

    Both raise RuntimeError once the group is closed, and if it could not connect.
    """

    @property
    def ready(self) -> bool:
        """Whether it is connected."""

    def connect(self) -> None: ...

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any: ...

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Any: ...


class _Transfer:
    """One payload. ``works`` keeps Gloo's side of it alive."""

    __slots__ = ("_lock", "_on_over", "issued", "number", "size_bytes", "tensors", "turn", "works")

    def __init__(self, number: int, tensors: list[Tensor], size_bytes: int, on_over: OnOver) -> None:
        self.number, self.tensors, self.size_bytes = number, tensors, size_bytes
        self.works: tuple[Any, ...] = ()
        self.issued = False
        self.turn = threading.Lock()  # of those who issue it, or copy it first
        self._on_over: OnOver | None = on_over
        self._lock = threading.Lock()

    @property
    def single(self) -> bool:
        return len(self.tensors) == 1 and self.tensors[0].nbytes == self.size_bytes

    def tensor(self) -> Tensor:
        """Return the payload as one contiguous tensor."""
        return self.tensors[0] if self.single else pack(self.tensors, self.size_bytes)

    def end(self, error: Exception | None) -> None:
        """Tell the end, unless it was told before."""
        with self._lock:
            on_over, self._on_over = self._on_over, None
        self.works = ()
        if on_over is not None:
            on_over(error)


class GlooMover:
    """Implements ``moving.PayloadMover``.

    Issuing an operation takes a lock that Gloo's own thread holds while data flows. So the calling thread does it only
    while little is moving and the group is connected, else a thread of its own; another one waits for the tails. Both
    start when needed.
    """

    def __init__(self, group: PointToPoint, peer: int, name: str) -> None:
        self._group, self._peer = group, peer
        self._issuer, self._waiter = SerialThread(f"{name}-issue"), SerialThread(f"{name}-wait")
        self._lock = threading.Lock()
        self._sends: dict[int, _Transfer] = {}  # until the peer has them
        self._receives: dict[int, _Transfer] = {}
        self._moving_bytes = 0
        self._closed = False
        self._released = threading.Event()

    @property
    def busy(self) -> bool:
        return bool(self._sends or self._receives)

    def prepare(self) -> bool:
        if not self._group.ready:
            self._group.connect()
        return self._group.ready

    def send(self, number: int, tensors: list[Tensor], size_bytes: int, on_over: OnOver) -> bool:
        transfer = _Transfer(number, tensors, size_bytes, on_over)
        return self._start(self._sends, transfer, partial(self._issue_send, transfer))

    def recv(self, number: int, tensor: Tensor, on_over: OnOver) -> bool:
        transfer = _Transfer(number, [tensor], tensor.nbytes, on_over)
        self._group.connect()  # the peer was faster, or we never heard of its first
        return self._start(self._receives, transfer, partial(self._issue_recv, transfer))

    def sent(self, number: int) -> None:
        with self._lock:
            transfer = self._sends.pop(number, None)
            if transfer is not None:
                self._moving_bytes -= transfer.size_bytes
        if transfer is not None:
            transfer.end(None)

    def copy_unsent(self, number: int) -> bool:
        with self._lock:
            transfer = self._sends.get(number)
        if transfer is None:
            return True
        with transfer.turn:
            if transfer.issued:
                return False
            try:
                transfer.tensors = [transfer.tensor().clone()]
            except (RuntimeError, MemoryError) as error:  # there is no memory for that
                logger.warning("the rest of a cancelled send cannot be copied: %s", error)
                return False
            return True

    def divert(self, number: int, tensor: Tensor) -> bool:
        return False  # the library has the caller's memory

    def close(self) -> None:
        """Take nothing more, and end the threads when what is under way has ended. Idempotent, never blocks."""
        with self._lock:
            self._closed = True
        self._issuer.stop()
        self._waiter.stop()

    def wait_closed(self, timeout_s: float) -> bool:
        return self._released.wait(timeout_s)

    def let_go(self) -> None:
        """The group touches no memory any more."""
        self._released.set()

    def release(self, error: Exception) -> None:
        """End what is left with an error. After ``close`` and ``let_go``."""
        with self._lock:
            left = [*self._sends.values(), *self._receives.values()]
            self._sends.clear()
            self._receives.clear()
        for transfer in left:
            transfer.end(error)

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end; False if they have not."""
        return self._issuer.join(timeout_s) and self._waiter.join(timeout_s)

    def _start(self, transfers: dict[int, _Transfer], transfer: _Transfer, issue: Callable[[], None]) -> bool:
        with self._lock:
            if self._closed:
                return False
            direct = transfer.single and self._moving_bytes <= DIRECT_BYTES and self._group.ready
            transfers[transfer.number] = transfer
            self._moving_bytes += transfer.size_bytes
        if direct:
            issue()
        elif not self._issuer.put(issue):
            self._forget(transfer)
            return False
        return True

    def _issue_send(self, transfer: _Transfer) -> None:
        with transfer.turn:
            transfer.issued = True
        tag = _tag(transfer.number)
        try:
            work = self._group.send(transfer.tensor(), self._peer, tag)
            transfer.works = (work, self._group.send(_TAIL, self._peer, tag + 1))
        except Exception as error:  # whatever the group raises belongs to this transfer
            self._fail(transfer, RuntimeError(str(error)))

    def _issue_recv(self, transfer: _Transfer) -> None:
        tag = _tag(transfer.number)
        try:
            work = self._group.recv(transfer.tensor(), self._peer, tag)
            transfer.works = (work, self._group.recv(_TAIL, self._peer, tag + 1))
        except Exception as error:  # as above
            self._fail(transfer, RuntimeError(str(error)))
            return
        self._waiter.put(partial(self._await_tail, transfer))  # refused: the group is being closed, and ends it

    def _await_tail(self, transfer: _Transfer) -> None:
        self._end(transfer, _wait_for_tail(transfer))

    def _fail(self, transfer: _Transfer, error: Exception) -> None:
        """Not from the calling thread, which may hold what ``on_over`` needs. Refused: ``release`` ends it."""
        self._issuer.put(partial(self._end, transfer, error))

    def _end(self, transfer: _Transfer, error: Exception | None) -> None:
        self._forget(transfer)
        transfer.end(error)

    def _forget(self, transfer: _Transfer) -> None:
        with self._lock:
            for transfers in (self._sends, self._receives):
                if transfers.get(transfer.number) is transfer:
                    del transfers[transfer.number]
                    self._moving_bytes -= transfer.size_bytes


def _tag(number: int) -> int:
    """Return the tag of a payload; its tail has the next."""
    return 2 * number % NUM_TAGS


def _wait_for_tail(transfer: _Transfer) -> Exception | None:
    """Return what went wrong. In a frame of its own: what ``end`` raises elsewhere may keep its caller's alive."""
    works = transfer.works
    if not works:  # it was ended meanwhile
        return None
    try:
        works[1].wait(FOREVER)
    except RuntimeError as error:
        return RuntimeError(str(error))  # without a traceback, for the same reason
    return None

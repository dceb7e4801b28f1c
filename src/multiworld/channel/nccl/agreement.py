"""Collectives of a process group: all ranks agree on each over their streams before any of them begins it.

A collective of a process group cannot be called off, and ranks that disagree on what it is would hang or compute
nonsense. So each rank first tells all others what it is about to do. Once all have said the same, it is launched, in
the order of the calls, which is the same everywhere. A disagreement fails that collective on all ranks, and nothing
else.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import MultiworldError
from ...wire.progress.operation import Operation, drive
from ..stream.mesh import StreamMesh
from ..stream.message import COLLECTIVE

logger = logging.getLogger(__name__)

GRACE_S = 0.008  # most collectives that are under way have ended by then
RELEASE_S = 1.0
_NOTHING = torch.empty(0, dtype=torch.uint8)

Launch = Callable[[list[Tensor]], Operation[None]]
"""Begin a collective on these tensors. What it returns ends when they are no longer touched."""
Copy = Callable[[list[Tensor]], "list[Tensor] | None"]
"""Return finished copies, within milliseconds; None if that is not possible."""


class GroupFailure(MultiworldError):
    """What a process group raised for an operation under way: a member was lost, and the world will say which."""


class _Call:
    """One collective call. Its tensors are replaced by copies when it is cancelled before it is launched."""

    def __init__(self, seq: int, name: str, tensors: list[Tensor], launch: Launch, num_missing: int) -> None:
        self.seq, self.name, self.tensors, self.launch, self.num_missing = seq, name, tensors, launch, num_missing
        self.operation: Operation[None] = Operation()
        self.receives: list[Operation[Any]] = []
        self.launched = False
        self.error: BaseException | None = None
        self.heard: set[int] = set()  # the peers that announced it too
        self.over = threading.Event()
        self.ended: Operation[None] = Operation()

    def end(self) -> None:
        """Its tensors are no longer touched."""
        self.over.set()
        self.ended.succeed(None)


class Agreement:
    """The collectives of one world in order; from any thread."""

    def __init__(
        self, mesh: StreamMesh, *, copy: Copy, on_stuck: Callable[[str], None], on_failed: Callable[[str], None]
    ) -> None:
        """``copy``: what a collective that is cancelled before it is launched goes on with. ``on_stuck``: a cancelled
        one of that name can be stopped only by breaking the world. ``on_failed``: the group failed for that reason.
        """
        self._mesh, self._copy, self._on_stuck, self._on_failed = mesh, copy, on_stuck, on_failed
        self._peers = mesh.peers
        self._lock = threading.Lock()
        self._seqs = itertools.count(1)
        self._calls: deque[_Call] = deque()  # not launched yet
        self._under_way: set[_Call] = set()
        self._launching = False
        self._error: Exception | None = None

    def start(
        self, name: str, said: Sequence[str], expected: Sequence[str], tensors: list[Tensor], launch: Launch
    ) -> Operation[None]:
        """Announce a collective, and launch it when all ranks have announced what fits.

        ``said``, ``expected`` (``[world_size]``): what each rank is told, and has to tell.

        If it is cancelled before that, it is carried out with copies of the tensors, so that the others get theirs
        right; cancelling it later costs the world.
        """
        with self._lock:
            call = _Call(next(self._seqs), name, tensors, launch, len(self._peers))
            if self._error is not None:
                call.operation.fail(self._error)
                return call.operation
            call.operation.on_cancel = partial(self._cancel, call)
            self._calls.append(call)
        for peer in self._peers:
            self._mesh.stream(peer).send(COLLECTIVE, call.seq, said[peer].encode(), [], [_NOTHING])
        for peer in self._peers:
            receive = self._mesh.stream(peer).recv(COLLECTIVE, call.seq, expected[peer].encode(), _NOTHING)
            call.receives.append(receive)
            receive.add_callback(partial(self._heard, call, peer))
        self._launch_next()
        return call.operation

    def all_of(self, peer: int) -> Operation[None]:
        """Return what is done when all collectives are over here that the peer has announced until now."""
        with self._lock:
            calls = [call for call in (*self._calls, *self._under_way) if peer in call.heard]
        return drive(_all([call.ended for call in calls]))

    def abort(self, error: Exception) -> None:
        """Fail what has not been launched, now; what is under way fails when it has let go of its tensors."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            calls = list(self._calls)
            self._calls.clear()
            failed = [call for call in self._under_way if call.error is not None]
        for call in calls + failed:
            call.end()
            call.operation.on_cancel = None
            call.operation.fail(error)

    def _heard(self, call: _Call, peer: int, receive: Operation[Any]) -> None:
        with self._lock:
            call.num_missing -= 1
            if receive.error is None:
                call.heard.add(peer)
            elif call.error is None:
                call.error = receive.error
        self._launch_next()

    def _launch_next(self) -> None:
        """Launch what is due. One thread does it for all, so that the order holds and no lock is held meanwhile."""
        while True:
            with self._lock:
                if self._launching or not self._calls:
                    return
                call = self._calls[0]
                if call.num_missing and call.error is None:
                    return
                self._calls.popleft()
                self._launching = call.launched = True
                self._under_way.add(call)
            try:
                self._begin(call)
            finally:
                with self._lock:
                    self._launching = False

    def _begin(self, call: _Call) -> None:
        if call.error is not None:
            self._disagree(call, call.error)
            return
        try:
            running = call.launch(call.tensors)
        except Exception as error:  # a refusal of the library: it belongs to the caller
            self._finish(call)
            call.operation.fail(error.with_traceback(None))  # which refers to the call
        else:
            running.add_callback(partial(self._ended, call))

    def _disagree(self, call: _Call, error: BaseException) -> None:
        self._finish(call)
        for receive in call.receives:
            receive.cancel(error)
        for peer in self._peers:
            self._mesh.stream(peer).give_up(call.seq)
        call.operation.fail(error)

    def _ended(self, call: _Call, running: Operation[None]) -> None:
        error = running.error
        with self._lock:
            broken_by = self._error
            lost = isinstance(error, GroupFailure) and broken_by is None
            if not lost:
                self._under_way.discard(call)
            else:  # the world breaks, and ``abort`` fails it then
                call.error = error
                call.tensors = []
        call.end()
        if error is None:
            call.operation.succeed(None)
        elif not lost:
            call.operation.fail(error if broken_by is None else broken_by)
        else:
            self._on_failed(f"{call.name}: {error}")

    def _finish(self, call: _Call) -> None:
        with self._lock:
            self._under_way.discard(call)
        call.end()

    def _cancel(self, call: _Call) -> None:
        with self._lock:
            copies = None if call.launched else self._copy(call.tensors)
            if copies is not None:
                call.tensors = copies
        if copies is not None or call.over.wait(GRACE_S if call.launched else 0):
            return
        self._on_stuck(call.name)
        if not call.over.wait(RELEASE_S):
            logger.error("a cancelled %s may still touch its tensors", call.name)


async def _all(operations: list[Operation[None]]) -> None:
    for operation in operations:
        await operation

"""What the master reads and writes in the memory of a node. That memory is kept until the master is done."""

from __future__ import annotations

import threading
from typing import Final

from torch import Tensor

from ...wire.progress.operation import Operation
from ..peer_memory import Mark, PeerMemoryError

_given_up: Final[list[Tensor]] = []
"""Memory that a master was writing when it was lost. The master may still write, so this memory is never used again."""


class Accesses:
    """``mark``: in memory, as long as the master may use its addresses. Any thread."""

    def __init__(self) -> None:
        self.mark = Mark()
        self._lock = threading.Lock()  # guards the lines below
        self._reads: dict[int, Operation[None]] = {}  # by request
        self._writes: dict[int, tuple[Operation[None], Tensor]] = {}  # by id
        self._is_over = False

    def show(self, mark: str) -> None:
        """Put what the master demands in place of the mark: it sees that this is the process that it talks to.

        Raises ProtocolError for what can't be a mark.
        """
        with self._lock:
            if not self._is_over:
                self.mark.show(mark)

    def begin_read(self, request: int) -> Operation[None]:
        """The master reads a tensor, which the caller keeps. Done when it has read it, or is lost."""
        with self._lock:
            operation = self._reads[request] = Operation()
            is_over = self._is_over
        if is_over:
            self.end()
        return operation

    def begin_write(self, id_: int, elements: Tensor) -> Operation[None]:
        """The master writes a tensor. Done when it has written it; it fails if it is lost before."""
        with self._lock:
            operation: Operation[None] = Operation()
            self._writes[id_] = operation, elements
            is_over = self._is_over
        if is_over:
            self.end()
        return operation

    def was_read(self, request: int) -> None:
        with self._lock:
            operation = self._reads.pop(request, None)
        if operation is not None:
            operation.succeed(None)

    def was_written(self, id_: int) -> None:
        with self._lock:
            found = self._writes.pop(id_, None)
        if found is not None:
            found[0].succeed(None)

    def end(self) -> None:
        """The master is lost, or done. It discards what it reads from now on."""
        with self._lock:
            self._is_over = True
            self.mark.erase()  # before the memory is freed: the master looks at the mark after each read
            operations = [*self._reads.values(), *(operation for operation, _ in self._writes.values())]
            _given_up.extend(elements for _, elements in self._writes.values())
            self._reads, self._writes = {}, {}
        for operation in operations:
            operation.fail(PeerMemoryError("the master is gone"))

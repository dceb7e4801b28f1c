"""What the streams of a node share: its tensors, those that are still to arrive, those that are being sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from ...errors import MultiworldError
from ...wire.progress.operation import Operation
from ...world.world import World
from ..protocol import lanes, specs
from ..protocol.messages import Arrives
from .operators import ALLOWED
from .table import Arriving, Entry, Table


class Shared:
    """``sending``: large tensors on their way to the master; an operation that writes one waits until it is sent."""

    def __init__(self, bulk: World, allowed: Iterable[str] = ALLOWED) -> None:
        self.table: Table = {}
        self.allowed = frozenset(allowed)
        self.is_dropping = False
        self.sending: list[tuple[Tensor, Operation[None]]] = []
        self._bulk = bulk
        self._lock = threading.Lock()  # guards the lines below and above
        self._arrivals: dict[int, Arriving] = {}

    def expect(self, arrives: Arrives) -> None:
        """Receive a large tensor. On whichever thread the news came: the executor may be busy."""
        spec = specs.from_json(arrives.spec)
        memory = torch.empty(spec.size, dtype=spec.dtype)
        receive = self._bulk.start_recv(memory, lanes.MASTER, arrives.id, None)
        with self._lock:
            self._arrivals[arrives.id] = Arriving(partial(self._wait, receive, memory, spec.device))

    def take_arrival(self, id_: int) -> Arriving:
        """Its news came before the record that asks for it."""
        with self._lock:
            return self._arrivals.pop(id_)

    def note_sending(self, tensor: Tensor, operation: Operation[None]) -> None:
        if operation.done:
            return
        with self._lock:
            self.sending = [each for each in self.sending if not each[1].done]
            self.sending.append((tensor, operation))

    def wait_sends(self, written: Sequence[Entry | None]) -> None:
        """Wait until the memory that an operation will write is sent."""
        with self._lock:
            self.sending = [each for each in self.sending if not each[1].done]
            pending = list(self.sending)
        storages = {entry.untyped_storage()._cdata for entry in written if isinstance(entry, Tensor)}
        for tensor, operation in pending:
            if tensor.untyped_storage()._cdata in storages:
                self._bulk.wait_for(operation, lanes.MASTER, None)

    def _wait(self, receive: Operation[None], memory: Tensor, device: str) -> Tensor:
        try:
            self._bulk.wait_thread(receive, lanes.MASTER, None)
        except MultiworldError as error:
            raise RuntimeError(f"a tensor did not arrive: {error}") from error
        return memory if device == "cpu" else memory.to(device)

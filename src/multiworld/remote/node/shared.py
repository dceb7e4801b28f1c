"""What the streams of a node share: its tensors, those that are still to arrive, those that are being sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ...errors import MultiworldError
from ...wire.progress.operation import Operation
from ...world.world import World
from ..large_memory import LargeMemory
from ..protocol import lanes, specs
from ..protocol.elements import tensor_of
from ..protocol.messages import Arrives, Declined, HasRoom
from ..protocol.specs import Spec
from .accesses import Accesses
from .functions import Functions
from .operators import ALLOWED
from .peers import Peers
from .streams import Streams
from .table import Arriving, Entry, Table


class Sending(NamedTuple):
    """Elements that are being sent; ``wait`` blocks until they are, or can't be."""

    elements: Tensor
    operation: Operation[None]
    wait: Callable[[], object]


class Shared:
    """``sending``: tensors on their way elsewhere; an operation that writes one waits until it is sent.

    ``peers``: the worlds with other nodes. ``memory``: for large tensors that come.
    ``master_reads``: the master reads large tensors in our memory, with ``accesses``.
    """

    def __init__(
        self, world: World, bulk: World, allowed: Iterable[str] = ALLOWED, functions: Functions | None = None
    ) -> None:
        self.table: Table = {}
        self.streams = Streams(self.table)
        self.functions = Functions({}) if functions is None else functions
        self.allowed = frozenset(allowed)
        self.is_dropping = False
        self.sending: list[Sending] = []
        self.peers = Peers()
        self.world, self.bulk = world, bulk
        self.memory = LargeMemory(bulk.later)
        self.accesses = Accesses()
        self.master_reads = False
        self._lock = threading.Lock()  # guards the lines below and above
        self._announced = threading.Condition(self._lock)
        self._arrivals: dict[int, Arriving | Exception] = {}
        self._is_over = False

    def end(self) -> None:
        """Nothing comes any more, and nothing is made: nobody waits for it."""
        with self._announced:
            self._is_over = True
            self._announced.notify_all()
        self.accesses.end()
        self.memory.clear()
        self.streams.end_all()

    def expect(self, arrives: Arrives) -> Declined | HasRoom | None:
        """Receive a large tensor, and return what the master has to hear. On whichever thread the news came: the
        executor may be busy.

        If there is no memory for it, what needs it fails with that error.
        """
        spec = specs.from_json(arrives.spec)
        try:
            elements = self.memory.tensor(spec.num_elements, spec.dtype)
        except (RuntimeError, MemoryError) as error:
            self._keep(arrives.id, error)
            return Declined(id=arrives.id)
        if arrives.is_written:
            receive, world = self.accesses.begin_write(arrives.id, elements), self.world
        else:
            receive, world = self.bulk.start_recv(elements, lanes.MASTER, arrives.id, None), self.bulk
        self._keep(arrives.id, Arriving(partial(_wait, world, receive, elements, spec)))
        return HasRoom(id=arrives.id, address=elements.data_ptr()) if arrives.is_written else None

    def _keep(self, id_: int, arrival: Arriving | Exception) -> None:
        with self._announced:
            self._arrivals[id_] = arrival
            self._announced.notify_all()

    def take_arrival(self, id_: int) -> Arriving:
        """Its news was sent before the record that asks for it, but another thread may still be about to read it.

        Raises the error of one that there was no memory for.
        """
        with self._announced:
            self._announced.wait_for(lambda: id_ in self._arrivals or self._is_over)
            arrival = self._arrivals.pop(id_)
        if isinstance(arrival, Exception):
            raise arrival
        return arrival

    def note_sending(self, elements: Tensor, operation: Operation[None], wait: Callable[[], object]) -> None:
        if operation.done:
            return
        with self._lock:
            self.sending = [each for each in self.sending if not each.operation.done]
            self.sending.append(Sending(elements, operation, wait))

    def wait_sends(self, written: Sequence[Entry | None]) -> None:
        """Wait until the memory that an operation will write is sent."""
        with self._lock:
            self.sending = [each for each in self.sending if not each.operation.done]
            pending = list(self.sending)
        storages = {entry.untyped_storage()._cdata for entry in written if isinstance(entry, Tensor)}
        for each in pending:
            if each.elements.untyped_storage()._cdata in storages:
                each.wait()


def _wait(world: World, receive: Operation[None], elements: Tensor, spec: Spec) -> Tensor:
    """``world``: where the elements come, or the word that they were written. This thread reads it meanwhile."""
    try:
        world.wait_thread(receive, lanes.MASTER, None)
    except MultiworldError as error:
        raise RuntimeError(f"a tensor did not arrive: {error}") from error
    return tensor_of(elements, spec).to(spec.device)

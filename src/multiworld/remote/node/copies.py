"""Copies from node to node, as the records of one stream have them: none waits until the other node is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from ...errors import MultiworldError
from ...wire.progress.operation import Operation
from ..large_memory import LargeMemory
from ..protocol.between import NotSent, NotTaken, ReceiveFrom, SendTo
from ..protocol.elements import elements_of, tensor_of
from ..protocol.messages import Failed
from .peer_world import NotSentError, PeerWorld
from .table import Arriving, Entry, Lost, Table


class Tensors(Protocol):
    """The tensors of a node, and those that are being sent."""

    table: Table
    memory: LargeMemory

    def note_sending(self, elements: Tensor, operation: Operation[None], wait: Callable[[], object]) -> None: ...

    def wait_sends(self, written: Sequence[Entry | None]) -> None: ...


class Records(NamedTuple):
    """What the records of several nodes need from the executor of their stream.

    ``arrive`` waits for those of the ids that are still to arrive. ``failed`` notes the failure of the present record.
    """

    tensors: Tensors
    arrive: Callable[[Iterable[int]], bool]
    failed: Callable[[BaseException], Failed]


def send_copy(records: Records, world: PeerWorld, said: SendTo) -> None:
    """Start to send a tensor. If it is lost, tell the other node why."""
    records.arrive((said.id,))
    entry = records.tensors.table.get(said.id)
    if isinstance(entry, Tensor):
        try:
            elements, _ = elements_of(entry)
            sending = world.send(elements, said.rank, said.target)
            records.tensors.note_sending(elements, sending, partial(world.wait_ended, sending))
            return
        except Exception as error:  # as of a tensor that has no data to send
            entry = Lost(records.failed(error))
    failed = entry.failure if isinstance(entry, Lost) else records.failed(KeyError(f"no tensor has the id {said.id}"))
    world.tell(said.rank, NotSent(target=said.target, failed=of_session(failed, world)))


def receive_copy(records: Records, world: PeerWorld, said: ReceiveFrom) -> None:
    """Start to receive a tensor. The other node is told if there is no memory for it."""
    table = records.tensors.table
    try:
        elements = records.tensors.memory.tensor(said.spec.num_elements, said.spec.dtype)
    except (RuntimeError, MemoryError) as error:
        table[said.id] = Lost(records.failed(error))
        world.tell(said.rank, NotTaken(target=said.id))
        return
    table[said.id] = Arriving(partial(_arrived, world, world.receive(elements, said.rank, said.id), elements, said))


def of_session(failed: Failed, world: PeerWorld) -> Failed:
    """Return a failure of this node as another one tells it."""
    return failed if failed.session else replace(failed, session=world.sessions[world.rank])


def _arrived(world: PeerWorld, receiving: Operation[None], elements: Tensor, said: ReceiveFrom) -> Tensor | Lost:
    """Wait for a tensor. Raises PeerFailedError if it does not come; one that is lost at its source is lost here."""
    try:
        world.wait(receiving, said.rank)
    except NotSentError as error:
        return Lost(error.failed)
    except (MultiworldError, OSError, ValueError, TypeError, RuntimeError) as error:
        doing = f"the tensor that node {world.nodes[said.rank]} sends for {said.label} did not come"
        raise world.failure(error, doing) from error
    return tensor_of(elements, said.spec).to(said.spec.device)

"""Large tensors on their way to the node, beside the commands: over a world, or straight into the node's memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from torch import Tensor

from ...channel.threads import SerialThread
from ...errors import MultiworldError, RequestCancelledError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread
from ..peer_memory import MIN_BYTES, PeerMemory, PeerMemoryError
from ..protocol import lanes
from .lifetime import Link
from .room import Room

logger = logging.getLogger(__name__)

END_S: Final = 5.0  # a part of a tensor takes some milliseconds


class Written(NamedTuple):
    """A tensor that is written into the memory of the node, once that says where."""

    link: Link
    memory: PeerMemory
    elements: Tensor
    operation: Operation[None]


class LargeTensors:
    """Any thread. ``was_written`` is called on the thread that writes, with the error if it could not."""

    def __init__(self, was_written: Callable[[Link, int, MultiworldError | None], object]) -> None:
        self._was_written = was_written
        self._sending: dict[int, tuple[Link, Operation[None]]] = {}  # by id
        self._written: dict[int, Written] = {}  # those of them that are written
        self._writer = SerialThread("multiworld-write")

    def start(self, link: Link, elements: Tensor, id_: int, room: Room) -> Operation[None]:
        """Send the elements of one. Raises the error of a world that is broken.

        ``room`` counts its bytes while it is on its way.
        """
        memory = link.memory
        if memory is None or elements.nbytes < MIN_BYTES:
            sending = link.bulk.start_send_tensors(elements, lanes.NODE, id_, None)
        else:
            sending = Operation()
            self._written[id_] = Written(link, memory, elements, sending)
        room.hold(elements.nbytes)
        self._sending[id_] = link, sending  # before the node hears of it: it may have no room
        sending.add_callback(lambda _: self._sent(id_, elements.nbytes, room))
        if link.lost:  # before this could be seen
            self.lost(link)
        return sending

    def is_written(self, id_: int) -> bool:
        """Whether one that was started is written into the memory of the node."""
        return id_ in self._written

    def write(self, id_: int, address: int) -> None:
        """The node has memory for one. It is written by another thread: this one has to go on reading news."""
        written = self._written.get(id_)
        if written is not None and not self._writer.put(partial(self._write, id_, address, written)):
            written.operation.fail(PeerMemoryError("no thread writes into the node's memory any more"))

    def _write(self, id_: int, address: int, written: Written) -> None:
        if written.operation.done:  # given up, or the node is lost
            return
        try:
            written.memory.write(address, written.elements, lambda: written.operation.done)
        except PeerMemoryError as error:
            if written.operation.done:
                return
            self._was_written(written.link, id_, error)
            written.operation.fail(error)
            return
        self._was_written(written.link, id_, None)
        written.operation.succeed(None)

    def lost(self, link: Link) -> None:
        """Give up what is written into the memory of the node of a link that broke."""
        for written in list(self._written.values()):
            if written.link is link:
                written.operation.fail(PeerMemoryError("the node is lost"))

    def end(self, link: Link) -> None:
        """Nothing is written any more, and no thread uses a tensor: at the end of the program it would be too late."""
        self.lost(link)
        self._writer.stop()
        if not self._writer.join(END_S):
            logger.warning("a tensor is still being written into the memory of a node")

    def wait(self, link: Link, sending: Operation[None]) -> None:
        """Wait until it is sent, or given up. Raises the error of a world that is broken."""
        is_written = any(each.operation is sending for each in list(self._written.values()))
        world = link.world if is_written else link.bulk  # this thread reads where the node says that it has room
        try:
            world.wait_thread(sending, lanes.NODE, None)
        except RequestCancelledError:
            return  # the node has no room: what needs the tensor gets that error

    def give_up(self, id_: int) -> None:
        """The node has no room for one: do not wait until it takes it."""
        found = self._sending.get(id_)
        if found is not None:
            link, sending = found
            cancelled = RequestCancelledError(link.bulk.name, link.bulk.generation, "send")
            run_in_thread(partial(sending.cancel, cancelled), "multiworld-decline")  # it may take a while

    def _sent(self, id_: int, num_bytes: int, room: Room) -> None:
        """On whichever thread a large tensor was sent, or given up."""
        self._sending.pop(id_, None)
        self._written.pop(id_, None)
        room.release(num_bytes)

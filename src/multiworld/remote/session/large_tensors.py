"""Large tensors on their way to the node, beside the commands."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ...errors import RequestCancelledError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread
from ..protocol import lanes
from .lifetime import Link
from .room import Room


class LargeTensors:
    """Any thread."""

    def __init__(self) -> None:
        self._sending: dict[int, tuple[Link, Operation[None]]] = {}  # by id

    def start(self, link: Link, elements: Tensor, id_: int, room: Room) -> Operation[None]:
        """Send the elements of one. Raises the error of a world that is broken.

        ``room`` counts its bytes while it is on its way.
        """
        sending = link.bulk.start_send_tensors(elements, lanes.NODE, id_, None)
        room.hold(elements.nbytes)
        self._sending[id_] = link, sending  # before the node hears of it: it may have no room
        sending.add_callback(lambda _: self._sent(id_, elements.nbytes, room))
        return sending

    def wait(self, link: Link, sending: Operation[None]) -> None:
        """Wait until it is sent, or given up. Raises the error of a world that is broken."""
        try:
            link.bulk.wait_thread(sending, lanes.NODE, None)
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
        room.release(num_bytes)

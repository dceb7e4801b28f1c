"""What a node sends to its master: news, answers, and tensors."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from torch import Tensor

from ...errors import MultiworldError
from ...world.world import World
from ..lane import send
from ..peer_memory import MIN_BYTES
from ..protocol import lanes
from ..protocol.elements import elements_of
from ..protocol.messages import TO_MASTER, Failed, InMemory, Sends, ToMaster
from ..protocol.reply import with_elements, with_message, with_tensor
from .shared import Shared


class Replies:
    """A world that is broken takes nothing any more, and nobody waits then: so nothing here raises for it."""

    def __init__(self, world: World, bulk: World, shared: Shared) -> None:
        self._world, self._bulk, self._shared = world, bulk, shared

    def tell(self, message: ToMaster) -> None:
        self._send(bytearray(TO_MASTER.encode(message)), lanes.NEWS)

    def say(self, request: int, message: ToMaster) -> None:
        self._send(with_message(request, message), lanes.REPLIES)

    def fail(self, request: int, failed: Failed) -> None:
        self.say(request, failed)

    def answer(self, request: int, content: bytes) -> None:
        """Send bytes that are no message."""
        self._send(with_elements(request, content), lanes.REPLIES)

    def send(self, request: int, tensor: Tensor) -> None:
        """Send the elements of a tensor. Raises RuntimeError for a tensor that has none to send."""
        elements, _ = elements_of(tensor)
        if elements.nbytes <= lanes.INLINE_BYTES:
            self._send(with_tensor(request, elements), lanes.REPLIES)
            return
        if self._shared.master_reads and elements.nbytes >= MIN_BYTES:
            reading = self._shared.accesses.begin_read(request)
            self._shared.note_sending(elements, reading, partial(self._world.wait_for, reading, lanes.MASTER, None))
            self.say(request, InMemory(address=elements.data_ptr(), num_bytes=elements.nbytes))
            return
        with suppress(MultiworldError):
            sending = self._bulk.start_send_tensors(elements, lanes.MASTER, lanes.FIRST_ELEMENTS + request, None)
            wait = partial(self._bulk.wait_for, sending, lanes.MASTER, None)
            self._shared.note_sending(elements, sending, wait)
            self.say(request, Sends(num_bytes=elements.nbytes))

    def _send(self, packed: bytearray, tag: int) -> None:
        with suppress(MultiworldError):
            send(self._world, packed, lanes.MASTER, tag)

"""What a node sends to its master: news, answers, and tensors."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from ...errors import MultiworldError
from ...world.world import World
from ..protocol import lanes
from ..protocol.elements import elements_of
from ..protocol.messages import TO_MASTER, Failed, Sends, ToMaster
from .shared import Shared


class Replies:
    """A world that is broken takes nothing any more, and nobody waits then: so nothing here raises for it."""

    def __init__(self, world: World, bulk: World, shared: Shared) -> None:
        self._world, self._bulk, self._shared = world, bulk, shared

    def tell(self, message: ToMaster) -> None:
        self._send_json(message, lanes.NEWS)

    def say(self, request: int, message: ToMaster) -> None:
        self._send_json(message, lanes.FIRST_REPLY + request)

    def fail(self, request: int, failed: Failed) -> None:
        self.say(request, failed)

    def send(self, request: int, tensor: Tensor) -> None:
        """Send the elements of a tensor. Raises RuntimeError for a tensor that has none to send."""
        elements, _ = elements_of(tensor)
        tag = lanes.FIRST_REPLY + request
        is_large = elements.nbytes > lanes.INLINE_BYTES
        world = self._bulk if is_large else self._world
        with suppress(MultiworldError):
            self._shared.note_sending(elements, world, world.start_send_tensors(elements, lanes.MASTER, tag, None))
            if is_large:
                self.say(request, Sends(num_bytes=elements.nbytes))

    def _send_json(self, message: ToMaster, tag: int) -> None:
        encoded = bytearray(TO_MASTER.encode(message))
        with suppress(MultiworldError):
            # In a list, so that nobody takes it for a tensor's values.
            self._world.start_send_tensors(
                torch.frombuffer(encoded, dtype=torch.uint8)
                if tag == lanes.NEWS
                else [torch.frombuffer(encoded, dtype=torch.uint8)],
                lanes.MASTER,
                tag,
                None,
            )

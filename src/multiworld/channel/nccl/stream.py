"""A message stream whose payloads lie in the memory of a device, and never travel on its connection."""

from __future__ import annotations

from torch import Tensor

from ...errors import ProtocolError
from ...wire.connection.frames import Header
from ..stream.message import Receive
from ..stream.moving import MovingStream
from ..stream.owner import StreamOwner
from .cuda_order import StreamOrder
from .mover import NcclMover


class NcclStream(MovingStream):
    """One peer's messages. Of what ``memory_of`` returns for their payloads, only the length may be used."""

    def __init__(self, owner: StreamOwner, rank: int, mover: NcclMover, order: StreamOrder) -> None:
        super().__init__(owner, rank, mover, inline_bytes=0)
        self._order = order

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes:
            raise ProtocolError("a payload on the connection, where only headers travel")
        return super().begin(header, meta)

    def _allocate(self, size_bytes: int) -> Tensor:
        try:
            return self._order.allocate(size_bytes)
        except RuntimeError as error:
            raise ProtocolError(f"no memory on the device for a message of {size_bytes} bytes: {error}") from error

    def _fill(self, target: Tensor, source: Tensor) -> None:
        self._order.fill(target, source)

    def _detach(self, receive: Receive) -> None:
        """No payload comes over the connection, so there is none to redirect."""
        self._inbox.withdraw_receive(receive)
        self._act()

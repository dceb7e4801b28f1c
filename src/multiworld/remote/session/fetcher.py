"""Fetch values from a node: within its reply, from its memory on the same host, or over the world of large tensors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial

from torch import Tensor

from ...errors import MultiworldError, ProtocolError
from ..errors import RemoteError
from ..large_memory import LargeMemory
from ..protocol import lanes, records
from ..protocol.elements import arrived_spec, tensor_of
from ..protocol.messages import InMemory, Read, ToNode
from ..protocol.reply import elements_in
from ..protocol.specs import Spec
from .command_stream import SessionStatistics
from .discarding import discard_values, if_abandoned
from .lifetime import Lifetime, Link
from .origins import here, line_of, origin
from .plainly import plainly
from .requests import Requests, Waited
from .sync_points import SyncPoints


class Fetcher:
    """Any thread. ``tell`` sends the node of a link a message with a tag."""

    def __init__(
        self,
        life: Lifetime,
        requests: Requests,
        sync_points: SyncPoints,
        statistics: SessionStatistics,
        tell: Callable[[Link, ToNode, int], None],
    ) -> None:
        self._life, self._requests, self._sync_points = life, requests, sync_points
        self._statistics, self._tell = statistics, tell
        self._memory = LargeMemory(lambda delay_s, call: life.present_link.world.later(delay_s, call))

    def clear(self) -> None:
        """Keep no memory for tensors to come."""
        self._memory.clear()

    def fetch(self, id_: int, spec: Spec, operation: str = "fetch") -> Tensor:
        """Wait for the values of a tensor. Raises RemoteOperationError, NodeDeadError."""
        place = origin(sys._getframe())
        line = line_of(place)
        with self._sync_points.wait(operation, line) as wait:
            waited = self._requests.ask_for(lambda request: records.fetch(id_, request), operation, line, place=place)
            values = self._requests.wait_for(waited, partial(self._receive, waited, spec))
            wait.num_bytes = values.nbytes
        return self._tensor_of(values, spec)

    async def fetch_async(self, id_: int, spec: Spec) -> Tensor:
        """As ``fetch``, without blocking the event loop."""
        line = here()
        with self._sync_points.wait("fetched", line) as wait:
            values = await self._fetched(id_, spec, line)
            wait.num_bytes = values.nbytes
        return self._tensor_of(values, spec)

    def was_read(self, link: Link, request: int) -> None:
        """Tell the node that what it said to be in its memory was read."""
        self._tell(link, Read(request=request), lanes.CONTROL)

    def _tensor_of(self, values: Tensor, spec: Spec) -> Tensor:
        self._statistics.fetched_bytes += values.nbytes
        return tensor_of(values, arrived_spec(spec))

    def _receive(self, waited: Waited, spec: Spec, link: Link) -> Tensor:
        reply = self._requests.reply_on(link, waited)
        if isinstance(reply, memoryview):
            return elements_in(reply, spec)
        if isinstance(reply, InMemory):
            return self._read(link, reply, spec, waited.request)
        values = self._elements(spec)
        with if_abandoned(partial(discard_values, link, waited.request)):
            link.bulk.blocking.recv(values, lanes.NODE, lanes.FIRST_ELEMENTS + waited.request)
        return values

    async def _receive_async(self, waited: Waited, spec: Spec, link: Link) -> Tensor:
        coming = link.answers.of(waited.request)
        reply = self._requests.read(await link.world.wait_async(coming, lanes.NODE), waited)
        if isinstance(reply, memoryview):
            return elements_in(reply, spec)
        if isinstance(reply, InMemory):
            with if_abandoned(partial(self.was_read, link, waited.request)):  # no thread may have begun
                return await asyncio.to_thread(self._read, link, reply, spec, waited.request)
        values = self._elements(spec)
        with if_abandoned(partial(discard_values, link, waited.request)):
            await link.bulk.recv(values, lanes.NODE, lanes.FIRST_ELEMENTS + waited.request)
        return values

    async def _fetched(self, id_: int, spec: Spec, line: str) -> Tensor:
        """As ``Requests.wait_for`` does it for threads."""
        waited = self._requests.ask_for(lambda request: records.fetch(id_, request), "fetched", line)
        try:
            while True:
                if self._life.away is not None:
                    await asyncio.to_thread(self._life.wait_back)
                link = self._requests.usable_link(waited)
                try:
                    return await self._receive_async(waited, spec, link)
                except RemoteError:
                    raise
                except MultiworldError as error:
                    self._requests.interrupted(link, error, waited)
        finally:
            self._requests.close(waited.request)

    def _read(self, link: Link, said: InMemory, spec: Spec, request: int) -> Tensor:
        """Read the elements of a tensor in the memory of the node. Raises PeerMemoryError."""
        try:
            if link.memory is None or said.num_bytes != spec.num_elements * spec.dtype.itemsize:
                raise ProtocolError(
                    f"{said.num_bytes} bytes in memory for {spec.num_elements} elements of {spec.dtype}"
                )
            values = self._elements(spec)
            link.memory.read(said.address, values)
            return values
        finally:
            self.was_read(link, request)

    @plainly
    def _elements(self, spec: Spec) -> Tensor:
        return self._memory.tensor(spec.num_elements, spec.dtype)

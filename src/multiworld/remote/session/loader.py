"""Tensors to the node: small ones go within the commands, large ones beside them, announced and in their place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from ...channel.payload.tensors import memory_of
from ...errors import MultiworldError
from ...wire.progress.operation import Operation
from ..errors import reason_of
from ..protocol import lanes, records, specs
from ..protocol.elements import elements_of, shares_memory
from ..protocol.messages import Arrives, HasRoom, ToNode, Written
from ..protocol.specs import Spec
from .command_stream import SessionStatistics
from .large_origins import LARGE_BYTES
from .large_origins import note as note_large
from .large_tensors import LargeTensors
from .lifetime import Lifetime, Link
from .origins import Origin, line_of, origin
from .plainly import plainly
from .recovering import Recovery
from .streams import Streams
from .waits import Wait, count_bytes


class Loader:
    """Any thread. ``lock`` and ``statistics``: of the session. ``tell`` sends a message over a link, on a tag."""

    def __init__(
        self,
        life: Lifetime,
        streams: Streams,
        lock: threading.RLock,
        statistics: SessionStatistics,
        tell: Callable[[Link, ToNode, int], None],
    ) -> None:
        self._life, self._streams, self._lock = life, streams, lock
        self._statistics, self._tell = statistics, tell
        self._large = LargeTensors(self._was_written)

    @plainly
    def load(self, tensor: Tensor, id_: int, *, wait: bool = True, depth: int = 1) -> Spec:
        """Send the values of a local tensor. ``wait``: until its memory may be changed."""
        plain, spec = elements_of(tensor)
        self._statistics.sent_bytes += plain.nbytes
        if plain.nbytes <= lanes.INLINE_BYTES:
            self._streams.present.emit(records.load(id_, spec, memory_of(plain)), "send", depth + 1)
            return spec
        place = origin(sys._getframe(depth))
        count_bytes(place, plain.nbytes)
        if plain.nbytes >= LARGE_BYTES:
            note_large([id_], place)
        recovery = self._life.recovery
        if recovery is not None:
            self._load_kept(recovery, plain.clone() if shares_memory(plain, tensor) else plain, id_, spec, place)
            return spec
        link, stream = self._life.present_link, self._streams.present
        try:
            sending = self._large.start(link, plain, id_, stream.room)
        except MultiworldError as error:
            self._life.lose(reason_of(error), link)
            return spec
        with self._lock:
            stream.queue.append((records.arrived(id_), "send", place))
            self._announce(link, id_, spec)
        stream.queued()
        if wait:
            try:
                with Wait("send", line_of(place)):
                    self._large.wait(link, sending)
            except MultiworldError as error:
                self._life.lose(reason_of(error), link)
        return spec

    def _load_kept(self, recovery: Recovery, elements: Tensor, id_: int, spec: Spec, place: Origin) -> None:
        """Send values that nobody changes, and keep them for a node that is made anew."""
        stream = self._streams.first
        with self._lock:
            recovery.keep_large(id_, elements, spec)
            stream.queue.append((records.arrived(id_), "send", place))
            if self._life.away is None:
                with suppress(MultiworldError):  # it is lost, and gets them later
                    self.send_large(elements, id_, spec)
            else:
                stream.flush(may_wait=False)
                stream.room.hold_until(stream.queue.position, elements.nbytes)
        stream.flush()

    def send_large(self, elements: Tensor, id_: int, spec: Spec) -> Operation[None]:
        """Send a large tensor, and say that it comes. Raises the error of a world that is broken."""
        link = self._life.present_link
        sending = self._large.start(link, elements, id_, self._streams.first.room)
        self._announce(link, id_, spec)
        return sending

    def wait_sent(self, link: Link, sending: Operation[None]) -> None:
        """Wait until a large tensor is sent. Raises the error of a world that is broken."""
        self._large.wait(link, sending)

    def give_up(self, id_: int) -> None:
        """The node has no room for a large tensor."""
        self._large.give_up(id_)

    def write(self, room: HasRoom) -> None:
        """The node has memory for a large tensor."""
        self._large.write(room.id, room.address)

    def lost(self, link: Link) -> None:
        """A link broke: nothing is written into the memory of its node any more."""
        self._large.lost(link)

    def end(self, link: Link) -> None:
        """Nothing is sent any more."""
        self._large.end(link)

    def _announce(self, link: Link, id_: int, spec: Spec) -> None:
        arrives = Arrives(id=id_, spec=specs.to_json(spec), is_written=self._large.is_written(id_))
        self._tell(link, arrives, lanes.ARRIVALS)

    def _was_written(self, link: Link, id_: int, error: MultiworldError | None) -> None:
        """On the thread that writes, after it has written a large tensor, or could not."""
        if error is None:
            self._tell(link, Written(id=id_), lanes.CONTROL)
        else:
            self._life.lose(reason_of(error), link)

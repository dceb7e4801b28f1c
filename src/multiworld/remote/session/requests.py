"""What a master asks of a node, and the waits for the answers, also while the node is lost and made anew."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from ...errors import MultiworldError
from ...wire.progress.waiting import start_and_wait
from ..errors import NodeReturnsError, RemoteError
from ..lane import bytes_of
from ..protocol import lanes
from ..protocol.messages import TO_MASTER, Failed, Outcome, ToMaster
from ..protocol.reply import read
from .command_stream import CommandStream
from .discarding import WasRead, discard_answer, was_abandoned
from .lifetime import Lifetime, Link, reason_of
from .origins import origin
from .plainly import plainly
from .streams import Streams

T = TypeVar("T")


class Waited(NamedTuple):
    """What a thread waits for: ``position`` is that of the record that asks for it; None: no record does.

    ``stream``: where that record stands.
    """

    request: int
    position: int | None
    operation: str
    line: str
    stream: CommandStream | None = None


class Requests:
    """``check_alive`` raises for an operation and its line if the node is lost, or the connection ended here.

    ``seen`` returns the error that somebody gets for a failure. ``was_read`` tells the node that an answer was read in
    its memory. Any thread.
    """

    def __init__(
        self,
        number: int,
        life: Lifetime,
        streams: Streams,
        check_alive: Callable[[str, str], None],
        seen: Callable[[Failed], RemoteError],
        was_read: WasRead,
    ) -> None:
        self._number, self._life, self._streams = number, life, streams
        self._check_alive, self._seen, self._was_read = check_alive, seen, was_read
        self.next = itertools.count(1).__next__
        """Returns a number for a request."""

    def ask_for(
        self,
        record: Callable[[int], bytes],
        operation: str,
        line: str,
        *,
        is_users: bool = True,
        stream: CommandStream | None = None,
    ) -> Waited:
        """Queue a record that is answered, and send it with all that it may need. Default: this thread's stream."""
        request = self.next()
        if stream is None:
            stream = self._streams.present
        if self._life.is_over:
            return Waited(request, stream.queue.position, operation, line, stream)
        if is_users and self._life.recovery is not None:
            stream.wait_for_room()  # a log that is full grows by nothing but what cuts it
        self._streams.flush_others(stream)
        place = origin(sys._getframe(2)) if is_users else None
        return Waited(request, stream.request((record(request), operation, place)), operation, line, stream)

    @plainly
    def wait_for(self, waited: Waited, receive: Callable[[Link], T]) -> T:
        """Return what ``receive`` returns; it is called again when a lost node was made anew."""
        with self.waiting(waited):
            while True:
                if self._life.away is not None:
                    self._life.wait_back()
                link = self.usable_link(waited)
                try:
                    return receive(link)
                except RemoteError:
                    raise
                except MultiworldError as error:
                    self.interrupted(link, error, waited)

    @contextmanager
    def waiting(self, waited: Waited) -> Iterator[None]:
        """Meanwhile a node that is made anew answers this request."""
        try:
            yield
        finally:
            if self._life.recovery is not None:
                self._life.recovery.done(waited.request)

    def usable_link(self, waited: Waited) -> Link:
        """Raises NodeDeadError, ConnectionEndedError."""
        self._check_alive(waited.operation, waited.line)
        return self._life.present_link

    def interrupted(self, link: Link, error: BaseException, waited: Waited) -> None:
        """The worlds of a link broke. Raises NodeDeadError if the wait is over with that, ConnectionEndedError."""
        self._life.lose(reason_of(error), link)
        self._check_alive(waited.operation, waited.line)
        recovery = self._life.recovery
        if recovery is None or recovery.raises or not (waited.position is None or recovery.is_waiting(waited.request)):
            raise NodeReturnsError(self._number, waited.operation, waited.line, self._life.away or reason_of(error))

    def reply_on(self, link: Link, waited: Waited) -> memoryview | ToMaster:
        """Receive the reply to a request; raise the failure that it tells, or the error of a broken world."""
        try:
            received = start_and_wait(
                lambda: link.world.start_recv_bytes(lanes.NODE, lanes.FIRST_REPLY + waited.request, None),
                lambda receive: link.world.wait_thread(receive, lanes.NODE, None),
            )
        except BaseException as error:
            if was_abandoned(error):
                discard_answer(link, waited.request, self._was_read)
            raise
        return self.read(bytes_of(received), waited)

    def read(self, reply: memoryview, waited: Waited) -> memoryview | ToMaster:
        """Return what a reply says; raise the failure that it tells, which may be one of another stream."""
        said = read(reply)
        if self._life.recovery is not None and isinstance(said, (Outcome, Failed)):
            self._life.recovery.answered(waited.request, TO_MASTER.encode(said))
        error = self._seen(said) if isinstance(said, Failed) else None  # before its line is forgotten
        if waited.position is not None and waited.stream is not None:
            waited.stream.confirm(waited.position + 1)
        if error is not None:
            raise type(error)(*error.args)
        return said

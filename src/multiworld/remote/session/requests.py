"""What a master asks of a node, and the waits for the answers, also while the node is lost and made anew."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ...errors import MultiworldError
from ...wire.progress.waiting import start_and_wait
from ..errors import NodeReturnsError, RemoteError, reason_of
from ..protocol import lanes
from ..protocol.messages import TO_MASTER, Failed, Outcome, ToMaster
from ..protocol.reply import read
from .command_stream import CommandStream
from .lifetime import Lifetime, Link
from .origins import Origin, origin
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

    ``seen`` returns the error that somebody gets for a failure. Any thread.
    """

    def __init__(
        self,
        number: int,
        life: Lifetime,
        streams: Streams,
        check_alive: Callable[[str, str], None],
        seen: Callable[[Failed], RemoteError],
    ) -> None:
        self._number, self._life, self._streams = number, life, streams
        self._check_alive, self._seen = check_alive, seen
        self._next = itertools.count(1).__next__
        self._open: set[int] = set()

    def next(self) -> int:
        """Return a number for a request; its reply is kept until ``close``."""
        request = self._next()
        self._open.add(request)
        return request

    def ask_for(
        self,
        record: Callable[[int], bytes],
        operation: str,
        line: str,
        *,
        is_users: bool = True,
        place: Origin = None,
        stream: CommandStream | None = None,
        flush_others: bool = True,
    ) -> Waited:
        """Queue a record that is answered, and send it with all that it may need. Default: this thread's stream.

        ``place``: the user's, of that line, if the caller knows it. ``flush_others``: False if the caller did.
        """
        request = self.next()
        if stream is None:
            stream = self._streams.present
        if self._life.is_over:
            return Waited(request, stream.queue.position, operation, line, stream)
        if is_users and self._life.recovery is not None:
            stream.wait_for_room()  # a log that is full grows by nothing but what cuts it
        if flush_others:
            self._streams.flush_others(stream)
        if is_users and place is None:
            place = origin(sys._getframe())
        return Waited(request, stream.request((record(request), operation, place)), operation, line, stream)

    @plainly
    def wait_for(self, waited: Waited, receive: Callable[[Link], T]) -> T:
        """Return what ``receive`` returns; it is called again when a lost node was made anew."""
        try:
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
        finally:
            self.close(waited.request)

    def is_open(self, request: int) -> bool:
        """Whether somebody waits for the reply to a request, or is about to."""
        return request in self._open

    def close(self, request: int) -> None:
        """Nobody waits for the reply any more; a node that is made anew does not answer this request."""
        self._open.discard(request)
        self._life.present_link.answers.close(request)
        if self._life.recovery is not None:
            self._life.recovery.done(request)

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
        """Wait for the reply to a request; raise the failure that it tells, or the error of a broken world."""
        reply = start_and_wait(
            lambda: link.answers.of(waited.request),
            lambda coming: link.world.wait_thread(coming, lanes.NODE, None),
        )
        return self.read(reply, waited)

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

"""One end of a control link: what it says and hears is typed, and each call ends with its answer or an error."""

from __future__ import annotations

import errno
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ...errors import MessageError, MultiworldError, ProtocolError
from ...wire.connection.connection import MAX_META_BYTES, Connection
from ...wire.connection.frames import Header, Kind, pack_frame
from ...wire.endpoints.keep_alive import keep_alive
from ...wire.messages import MAX_BYTES, Json, MessageSet, from_json, to_json
from ...wire.progress.operation import Operation
from .envelope import NOTE, Answered, Asked, pack_answered, pack_asked, unpack

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES: Final = 2 * MAX_BYTES  # of what the other end does not read
MAX_UNSENT_PARTS: Final = 64
NUM_PROBES: Final = 3
UNREACHABLE_S: Final = 4.0

Said = TypeVar("Said")
Heard = TypeVar("Heard")
A = TypeVar("A")

Deliver = Callable[[Callable[[], None]], object]


class LinkLostError(MultiworldError):
    """The link was lost (``reason``, ``errno``) before an answer came. What was asked for may have been done."""

    def __init__(self, reason: str, errno: int = 0) -> None:
        super().__init__(reason, errno)
        self.reason, self.errno = reason, errno

    @property
    def is_forged(self) -> bool:
        """Whether somebody on the path wrote into the connection: a record did not verify."""
        return self.errno == errno.EBADMSG

    def __str__(self) -> str:
        return f"the link was lost before an answer came: {self.reason}"


class CallRefusedError(MultiworldError):
    """The other end refused a call (``reason``). ``kind``: the name of the error there; empty if it gave none."""

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason, kind)
        self.reason, self.kind = reason, kind

    def __str__(self) -> str:
        return self.reason


def on_event_loop(loop: asyncio.AbstractEventLoop) -> Deliver:
    """Return a ``deliver`` that calls on that loop, in order; once it is closed, nobody is there to be called."""

    def deliver(call: Callable[[], None]) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return deliver


def as_json(content: object) -> Mapping[str, Json]:
    """Return a frozen dataclass as JSON, and what is JSON already as it is: an answer that is passed on."""
    return content if isinstance(content, Mapping) else to_json(content)


class Call:
    """What the other end waits for, if it does: answer it once, after any number of parts. From any thread."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: ControlLink[Any, Any], number: int) -> None:
        self._link, self._number = link, number

    @property
    def is_open(self) -> bool:
        """Whether somebody may still wait."""
        return self._link.is_open

    def part(self, content: object) -> bool:
        """Send a part of the answer: a frozen dataclass, or JSON. False: the other end is too slow to take it now."""
        return self._link.num_queued < MAX_UNSENT_PARTS and self._say("part", content)

    def answer(self, content: object) -> bool:
        """Return whether the link on which it was asked is still there; answers never go over another one."""
        return self._say("answer", content)

    def refuse(self, reason: str, kind: str = "") -> bool:
        return self._say("error", reason, kind)

    def _say(self, name: str, content: object, kind: str = "") -> bool:
        if self._number == NOTE:
            return self.is_open
        shown = content if isinstance(content, str) else as_json(content)
        return self._link.send(pack_answered(self._number, name, shown, kind))


class ControlLink(Generic[Said, Heard]):
    """A connection sink; give it to ``dial`` or ``Pending.accept``. ``tell`` and ``ask`` from any thread.

    A message that does not decode is refused if it is a call, and dropped with a warning if it is a note; the link
    goes on. Frames of another protocol end it.
    """

    def __init__(
        self,
        says: MessageSet[Said] | None,
        hears: MessageSet[Heard] | None,
        *,
        on_message: Callable[[Heard, Call], None] = lambda message, call: None,
        on_lost: Callable[[LinkLostError], None] = lambda error: None,
        deliver: Deliver | None = None,
        max_heard_bytes: int = MAX_META_BYTES,
    ) -> None:
        """``on_message`` gets notes, and calls, which it answers then or later. ``on_lost`` is called once.

        Without ``says`` this end only answers; without ``hears`` it is told nothing but answers.

        ``deliver`` has all this called where it should be, and answers taken there; by default on the thread that
        reads, with no lock held.
        """
        self._says, self._hears = says, hears
        self._on_message, self._on_lost = on_message, on_lost
        self._deliver_elsewhere, self._max_heard_bytes = deliver, max_heard_bytes
        self._connection: Connection | None = None
        self._lost: LinkLostError | None = None
        self._numbers = itertools.count(NOTE + 1)
        self._calls: dict[int, _Waiting[Any]] = {}
        self._num_unsent_bytes = 0
        self._lock = threading.Lock()  # guards the line above

    def __repr__(self) -> str:
        names = "/".join("nothing" if each is None else each.name for each in (self._says, self._hears))
        return f"<ControlLink {names} over {self._connection}>"

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return self._lost is not None

    @property
    def owes(self) -> bool:
        """Whether something that was said has not been sent yet."""
        return self.is_open and self._num_unsent_bytes > 0

    @property
    def num_queued(self) -> int:
        return 0 if self._connection is None else self._connection.num_queued

    @property
    def connection(self) -> Connection:
        """Once there is one."""
        assert self._connection is not None
        return self._connection

    def tell(self, message: Said) -> bool:
        """Say something that is not answered. False: there is no connection, and it was dropped."""
        return self.send(self._pack(NOTE, message))

    def ask(self, message: Said, answer: type[A], on_part: Callable[[A], None] | None = None) -> Operation[A]:
        """Return the answer to come. ``on_part`` gets what comes before it, of the same type.

        Fails with LinkLostError, CallRefusedError, or MessageError for an answer of another type.
        """
        number = next(self._numbers)
        waiting = self._calls[number] = _Waiting(answer, on_part)
        if not self.send(self._pack(number, message)):
            self._calls.pop(number, None)
            waiting.operation.fail(self._lost or LinkLostError("it is not connected"))
        return waiting.operation

    def finish(self, within_s: float = 1.0) -> None:
        """Close behind what is still to be sent."""
        if self._connection is not None:
            self._connection.finish_writing(lambda: None)
            self._connection.loop.call_later(within_s, self._connection.abort)

    def abort(self) -> None:
        """Close now. Idempotent."""
        if self._connection is not None:
            self._connection.abort()

    def send(self, body: bytes) -> bool:
        """Of ``Call`` only."""
        if self._connection is None or self._connection.closed:
            return False
        with self._lock:
            self._num_unsent_bytes += len(body)
        if self._num_unsent_bytes > MAX_UNSENT_BYTES:
            logger.warning("the other end of %r reads nothing; the connection is given up", self)
            self._connection.abort("the other end reads nothing")
            return False
        self._connection.send(pack_frame(Kind.CONTROL, body), on_sent=partial(self._sent, len(body)))
        return True

    def _pack(self, number: int, message: Said) -> bytes:
        assert self._says is not None
        return pack_asked(number, self._says.to_json(message))

    def _sent(self, num_bytes: int) -> None:
        with self._lock:
            self._num_unsent_bytes -= num_bytes

    # connection sink
    def opened(self, connection: Connection) -> None:
        self._connection = connection
        connection.parser.max_meta_bytes = self._max_heard_bytes
        if not connection.is_local:
            keep_alive(connection.sock, num_probes=NUM_PROBES, unreachable_s=UNREACHABLE_S)

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes or header.kind != Kind.CONTROL:
            raise ProtocolError(f"frame kind {header.kind} on a control link")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        frame = unpack(meta)
        if isinstance(frame, Answered):
            self._deliver(partial(self._answered, frame))
        elif self._hears is None:
            raise ProtocolError("a question to an end that only asks")
        else:
            self._deliver(partial(self._asked, self._hears, frame))

    def lost(self, reason: str) -> None:
        self._lost = error = LinkLostError(reason, self.connection.lost_errno)
        if self._deliver_elsewhere is None:
            self._end(error)
        else:
            self._deliver_elsewhere(partial(self._end, error))

    def _deliver(self, call: Callable[[], None]) -> None:
        """With the read side held."""
        if self._deliver_elsewhere is None:
            self.connection.defer(call)
        else:
            self._deliver_elsewhere(call)

    def _asked(self, hears: MessageSet[Heard], asked: Asked) -> None:
        call = Call(self, asked.number)
        try:
            message = hears.from_json(asked.question)
        except MessageError as error:
            if asked.number == NOTE:
                logger.warning("on %r: %s", self, error)
            call.refuse(str(error), type(error).__name__)
            return
        try:
            self._on_message(message, call)
        except Exception as error:  # a defect here: who waits is told, and the link goes on
            logger.exception("%r could not be dealt with", message)
            call.refuse(f"{type(error).__name__}: {error}", type(error).__name__)

    def _answered(self, answered: Answered) -> None:
        waiting = self._calls.get(answered.number)
        if waiting is None:
            return
        if answered.name == "part":
            waiting.take_part(answered.content)
            return
        self._calls.pop(answered.number, None)
        if answered.name == "error":
            waiting.operation.fail(CallRefusedError(str(answered.content), answered.kind))
        else:
            waiting.take(answered.content)

    def _end(self, error: LinkLostError) -> None:
        while self._calls:
            _, waiting = self._calls.popitem()
            waiting.operation.fail(LinkLostError(error.reason, error.errno))
        self._on_lost(error)


class _Waiting(Generic[A]):
    """A call whose answer is still to come."""

    def __init__(self, answer: type[A], on_part: Callable[[A], None] | None) -> None:
        self.operation: Operation[A] = Operation()
        self._answer, self._on_part = answer, on_part

    def take(self, content: object) -> None:
        try:
            self.operation.succeed(from_json(self._answer, content))
        except MessageError as error:
            self.operation.fail(error)

    def take_part(self, content: object) -> None:
        try:
            part = from_json(self._answer, content)
        except MessageError as error:
            self.operation.fail(error)
            return
        if self._on_part is not None and not self.operation.done:
            self._on_part(part)

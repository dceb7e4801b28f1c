"""Streams and events of a node, as ``torch.cuda`` has them: what order operations keep among each other there."""

from __future__ import annotations

import sys
import threading

from ..errors import PlaceMismatchError
from ..protocol import records
from ..session.command_stream import CommandStream
from ..session.origins import origin
from ..session.session import Session, next_id


class Stream:
    """Operations of one stream run in their order; those of several run beside each other, ordered by events only.

    Inside ``with stream:`` this thread issues there what it does with tensors of the node. A tensor may be used on any
    stream: what needs it waits until it is made. Writes in place, and the node's generators, are ordered by events
    alone. A stream belongs to one generation of its node: after a loss, make new ones.
    """

    def __init__(self, session: Session, commands: CommandStream | None = None) -> None:
        """``commands``: those of a stream that is there; by default the node opens one. Raises NodeDeadError."""
        session.check_usable("stream")
        self._session = session
        self._is_own = commands is None
        self._commands = session.open_stream() if commands is None else commands
        self._asked: tuple[int, Event] | None = None  # the event that ``query`` waits for, and the position behind it

    def __repr__(self) -> str:
        return f"<Stream {self._commands.number} of node {self._session.number}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._commands is self._commands

    def __hash__(self) -> int:
        return hash(self._commands)

    def __del__(self) -> None:
        commands = getattr(self, "_commands", None)
        if commands is not None and self._is_own and commands.takes_commands:
            self._session.world.soon(commands.close)  # no lock may be taken here

    @property
    def node(self) -> int:
        """The number of its node."""
        return self._session.number

    @property
    def number(self) -> int:
        """0 is the default stream of the node."""
        return self._commands.number

    # ---- use

    def __enter__(self) -> Stream:
        """Raises NodeDeadError; RuntimeError if it was closed, and in a captured block."""
        self._check("a stream")
        self._session.streams.enter(self._commands, self)
        return self

    def __exit__(self, *error: object) -> None:
        self._session.streams.leave()

    def close(self) -> None:
        """Let the node end it behind what was issued. Idempotent; a stream that nobody refers to is closed, too.

        Raises ValueError for the default stream.
        """
        if self._commands.number == 0:
            raise ValueError("the default stream of a node can't be closed: it ends with the connection")
        self._commands.close()

    # ---- order

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event behind what was issued on this stream; return it. Default: a new one."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """What is issued on this stream from now on waits until the event was recorded. The master does not wait."""
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """What is issued on this stream from now on waits for what was issued on the other one."""
        self.wait_event(other.record_event())

    def record(self) -> Event:
        """As ``record_event``."""
        return self.record_event()

    def wait(self, other: Event | Stream) -> None:
        """As ``wait_event`` or ``wait_stream``."""
        if isinstance(other, Stream):
            self.wait_stream(other)
        else:
            self.wait_event(other)

    # ---- the master and the stream

    def synchronize(self) -> None:
        """Wait until all that was issued on it is executed. Raises NodeDeadError."""
        self._session.check_usable("synchronize")
        self._session.synchronize(self._commands)

    def query(self) -> bool:
        """Return whether all that was issued on it is executed. It does not wait. Raises NodeDeadError."""
        self._session.check_usable("query")
        commands = self._commands
        is_done = commands.is_confirmed(commands.behind - 1)
        if is_done or commands.is_closed:
            return is_done
        if self._asked is None or self._asked[0] != commands.behind:
            event = self.record_event()
            self._asked = (commands.behind, event)
        return self._asked[1].query()

    def _check(self, operation: str) -> None:
        self._session.check_usable(operation)
        if self._commands.is_closed:
            raise RuntimeError(f"{operation}: {self!r} was closed: make another one with nodes[{self.node}].stream()")


class Event:
    """A place in a stream of a node. It can be recorded again: a wait is for the record before it was issued."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a record does not come between the look at the lines below and their use
        self._session: Session | None = None
        self._commands: CommandStream | None = None
        self._id = self._position = -1

    def __repr__(self) -> str:
        if self._session is None or self._commands is None:
            return "<Event: not recorded>"
        return f"<Event of stream {self._commands.number} of node {self._session.number}>"

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None:
            self._session.free(self._id)  # type: ignore[union-attr]

    def record(self, stream: Stream) -> None:
        """Record it behind what was issued on the stream. Raises NodeDeadError; RuntimeError for a closed stream."""
        stream._check("record")
        id_ = next_id()
        with self._lock:
            before = (self._session, self._id)
            self._position = stream._commands.emit_known(records.record_event(id_), "record", origin(sys._getframe()))
            self._session, self._commands, self._id = stream._session, stream._commands, id_
            if before[0] is not None:
                before[0].free(before[1])

    def wait(self, stream: Stream) -> None:
        """What is issued on the stream from now on waits for the event. One that was never recorded is not waited for.

        Raises PlaceMismatchError for an event of another node, NodeDeadError.
        """
        stream._check("wait")
        with self._lock:
            if self._session is None or self._commands is stream._commands:
                return
            if self._session is not stream._session:
                self._session.check_usable("an event of an earlier generation")
                raise PlaceMismatchError(
                    "wait",
                    f"node {stream.node}",
                    f"node {self._session.number}",
                    "Events order the streams of one node: wait for it on the master with event.synchronize()",
                )
            stream._commands.emit(records.wait_event(self._id), "wait", 2)

    def synchronize(self) -> None:
        """Wait until it was recorded on the node. Raises NodeDeadError."""
        with self._lock:
            session, commands, position = self._session, self._commands, self._position
        if session is not None and commands is not None:
            session.wait_confirmed(commands, position, "synchronize")

    def query(self) -> bool:
        """Return whether it was recorded on the node. It does not wait. Raises NodeDeadError."""
        with self._lock:
            session, commands, position = self._session, self._commands, self._position
        if session is None or commands is None or commands.is_confirmed(position):
            return True
        session.check_usable("query")
        commands.flush(may_wait=False)
        return False

"""All streams of commands to one node: which one a thread uses, and what has to be executed before ids are freed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..protocol import records
from ..protocol.records import Passed
from .command_stream import CommandStream

Make = Callable[[int, list[int]], CommandStream]


@dataclass
class Counts:
    """What streams have done that are kept no more."""

    num_commands: int = 0
    num_waits: int = 0


class Streams:
    """``first``: stream 0, which is always there. ``ended``: of streams that are over. Numbers are never used twice."""

    def __init__(self, make: Make, lock: threading.RLock) -> None:
        """``make`` is called with the number of a stream, and with the list of ids to be freed, which all share."""
        self._make, self._lock = make, lock
        self._freed: list[int] = []
        self.first = make(0, self._freed)
        self.ended = Counts()
        self._by_number = {0: self.first}
        self._numbers = itertools.count(1)
        self._threads = threading.local()

    def add(self) -> CommandStream:
        with self._lock:
            self._forget_ended()
            number = next(self._numbers)
            stream = self._make(number, self._freed)
            for each in (self.first, stream):
                each.queue.free_record = partial(self._free_record, each)
            self._by_number[number] = stream
        return stream

    def all(self) -> list[CommandStream]:
        """Return those that may still be heard of: failures of a closed one can still be asked for."""
        return list(self._by_number.values())

    def numbered(self, number: int) -> CommandStream | None:
        return self._by_number.get(number)

    def flush_others(self, *streams: CommandStream) -> None:
        """Send what other streams have: somebody is about to wait for a command of these that may need it."""
        for each in self.all():
            if each not in streams:
                if each.queue.waiting:
                    each.flush(may_wait=False)
                each.begin_anew()

    def _forget_ended(self) -> None:
        for number, stream in list(self._by_number.items()):
            last = stream.last_position
            if last is not None and stream.is_confirmed(last) and not stream.failures.total:
                self.ended.num_commands += stream.queue.position
                self.ended.num_waits += stream.room.num_waits
                del self._by_number[number]

    # ---- which one a thread uses

    @property
    def present(self) -> CommandStream:
        """The stream of this thread. Raises RuntimeError if it was closed."""
        stack = getattr(self._threads, "stack", None)
        if not stack:
            return self.first
        stream: CommandStream = stack[-1][0]
        if stream.is_closed:
            raise RuntimeError(f"stream {stream.number} of a node is used after its close(): make another one")
        return stream

    @property
    def present_owner(self) -> object:
        """What ``enter`` was called with; None for stream 0 if it was not."""
        stack = getattr(self._threads, "stack", None)
        return stack[-1][1] if stack else None

    def enter(self, stream: CommandStream, owner: object) -> None:
        """From now on this thread uses that stream of an owner. Raises RuntimeError in the middle of a capture."""
        if self.present.captured_by == threading.get_ident():
            raise RuntimeError("a captured block stays on one stream: enter the stream before remote.capture()")
        stack = getattr(self._threads, "stack", None)
        if stack is None:
            stack = self._threads.stack = []
        stack.append((stream, owner))

    def leave(self) -> None:
        """This thread uses again what it used before."""
        self._threads.stack.pop()

    # ---- frees

    def _free_record(self, stream: CommandStream, ids: list[int]) -> bytes:
        """Return the record that frees ids, behind all that uses them: in this stream it stands behind that already.

        Called with the lock, after the ids were taken: all commands that use one of them were appended before.
        """
        others = [each for each in self.all() if each is not stream and each.queue.num_unexecuted]
        passed = [Passed(each.number, each.queue.end) for each in others]
        return records.release(ids, passed) if passed else records.free(ids)

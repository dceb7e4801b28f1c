"""One console that the streams of all workers share: whole lines, bounded memory, and never a wait for its reader."""

from __future__ import annotations

import codecs
import logging
import os
import select
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from ...wire.progress import ProgressThread
from .lines import Labeller

__all__ = ["Console", "open_consoles"]

logger = logging.getLogger(__name__)

FULL_BYTES = 1024 * 1024  # waiting for a slow reader; the streams that come here are not read meanwhile
WRITE_BYTES = select.PIPE_BUF  # what a pipe that polls writable takes without blocking


class Console:
    """Writes to a descriptor, or to a text stream that has none. On the pump's thread only.

    A reader that went away ends the writing and nothing else.
    """

    def __init__(self, thread: ProgressThread, target: TextIO | None) -> None:
        self._thread = thread
        self._fd = _own_descriptor(target)
        self._text = target if self._fd is None else None
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._waiting: deque[bytes] = deque()
        self._num_waiting = 0
        self._watched = False
        self._line_of: Labeller | None = None
        self._when_empty: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        return self._num_waiting >= FULL_BYTES

    def show(self, source: Labeller, text: bytes) -> None:
        """Write ``text`` of a stream; the unfinished line of another is ended first."""
        if not text:
            return
        shown = source.label(text)
        if self._line_of is not None and self._line_of is not source and not source.exact:
            self._line_of.start_anew()
            shown = b"\n" + shown
        self._line_of = None if text.endswith(b"\n") else source
        self._write(shown)

    def end_line(self, source: Labeller) -> None:
        """The stream came to its end; what others write is not to follow on its line."""
        if self._line_of is source:
            self._line_of = None
            if not source.exact:
                self._write(b"\n")

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once all was written, or cannot be."""
        if self._waiting:
            self._when_empty.append(callback)
        else:
            callback()

    def close(self) -> None:
        """Give up what was not written. Idempotent."""
        self._drop()
        if self._fd is not None:
            self._unwatch()
            os.close(self._fd)
            self._fd = None
        self._text = None

    def on_ready(self, events: int) -> None:
        self._flush()

    def on_failure(self, error: BaseException) -> None:
        self.close()

    def close_descriptor(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, data: bytes) -> None:
        if self._fd is not None:
            self._waiting.append(data)
            self._num_waiting += len(data)
            if not self._watched:
                self._flush()
        elif self._text is not None:
            try:
                self._text.write(self._decode(data))
                self._text.flush()
            except (OSError, ValueError) as error:  # the stream was closed
                self._give_up(error)

    def _flush(self) -> None:
        try:
            while self._waiting:
                if not self._is_writable():
                    self._watch()
                    return
                self._write_some()
        except BlockingIOError:  # somebody else filled it meanwhile
            self._watch()
            return
        except OSError as error:
            self._give_up(error)
        self._unwatch()
        self._tell_empty()

    def _write_some(self) -> None:
        assert self._fd is not None
        first = self._waiting.popleft()
        part = first[:WRITE_BYTES]
        if len(first) > WRITE_BYTES:  # at the end of a line, for who else writes there
            part = part[: part.rfind(b"\n") + 1] or part
        written = 0
        try:
            written = os.write(self._fd, part)
        finally:
            self._num_waiting -= written
            if written < len(first):
                self._waiting.appendleft(first[written:])

    def _is_writable(self) -> bool:
        assert self._fd is not None
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))  # an error too: the write tells which

    def _watch(self) -> None:
        if not self._watched and self._fd is not None:
            self._thread.register(self._fd, select.EPOLLOUT, self)
            self._watched = True

    def _unwatch(self) -> None:
        if self._watched and self._fd is not None:
            self._thread.unregister(self._fd)
        self._watched = False

    def _give_up(self, error: Exception) -> None:
        logger.debug("the console takes no more output of workers: %s", error)
        self.close()

    def _drop(self) -> None:
        self._waiting.clear()
        self._num_waiting = 0
        self._tell_empty()

    def _tell_empty(self) -> None:
        callbacks, self._when_empty = self._when_empty, []
        for callback in callbacks:
            callback()


def open_consoles(thread: ProgressThread, out: TextIO | None, err: TextIO | None) -> tuple[Console, Console]:
    """Return the consoles for stdout and stderr: one and the same if both lead to the same place."""
    console = Console(thread, out)
    return console, console if _same_place(out, err) else Console(thread, err)


def _same_place(out: TextIO | None, err: TextIO | None) -> bool:
    descriptors = [_descriptor(stream) for stream in (out, err)]
    if None in descriptors:
        return out is err
    first, second = (os.fstat(descriptor) for descriptor in descriptors if descriptor is not None)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _own_descriptor(target: TextIO | None) -> int | None:
    """Return a copy that stays open, whatever others do with theirs, and does not block if that is possible."""
    descriptor = _descriptor(target)
    if target is None or descriptor is None:
        return None
    target.flush()  # what was printed before comes before
    if os.isatty(descriptor) or stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with suppress(OSError):  # opened anew, because O_NONBLOCK would hold for all who share what it was copied from
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(descriptor)


def _descriptor(target: TextIO | None) -> int | None:
    try:
        descriptor = None if target is None else target.fileno()
        if descriptor is not None:
            os.fstat(descriptor)
    except (OSError, ValueError, AttributeError):  # a text stream in memory, or one that is closed
        return None
    return descriptor

"""One console that the streams of all workers share: whole lines, bounded memory, and never a wait for its reader."""

from __future__ import annotations

import codecs
import logging
import os
import select
from collections import deque
from collections.abc import Callable
from typing import TextIO, TypeVar

from ...wire.progress import ProgressThread
from .lines import Labeller
from .outlet import Outlet, find_descriptor

__all__ = ["Console", "open_consoles"]

logger = logging.getLogger(__name__)

FULL_BYTES = 1024 * 1024  # waiting for a slow reader; the streams that come here are not read meanwhile


Kind = TypeVar("Kind", bound="Console")


class Console:
    """Writes to a descriptor, or to a text stream that has none. On the pump's thread only.

    A reader that went away ends the writing and nothing else.
    """

    def __init__(self, thread: ProgressThread, target: TextIO | None) -> None:
        self._thread = thread
        self._outlet = Outlet(target) if target is not None and find_descriptor(target) is not None else None
        self._text = target if self._outlet is None else None
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
        self._unwatch()
        self.close_descriptor()
        self._text = None

    def on_ready(self, events: int) -> None:
        self._flush()

    def on_failure(self, error: BaseException) -> None:
        self.close()

    def close_descriptor(self) -> None:
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None

    def _write(self, data: bytes) -> None:
        if self._outlet is not None:
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
                self._write_some()
        except BlockingIOError:
            self._watch()
            return
        except OSError as error:
            self._give_up(error)
        self._unwatch()
        self._tell_empty()

    def _write_some(self) -> None:
        assert self._outlet is not None
        first = self._waiting.popleft()
        written = 0
        try:
            written = self._outlet.write_some(first)
        finally:
            self._num_waiting -= written
            if written < len(first):
                self._waiting.appendleft(first[written:])

    def _watch(self) -> None:
        if not self._watched and self._outlet is not None:
            self._thread.register(self._outlet.fd, select.EPOLLOUT, self)
            self._watched = True

    def _unwatch(self) -> None:
        if self._watched and self._outlet is not None:
            self._thread.unregister(self._outlet.fd)
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


def open_consoles(
    thread: ProgressThread, out: TextIO | None, err: TextIO | None, kind: type[Kind]
) -> tuple[Kind, Kind]:
    """Return the consoles for stdout and stderr: one and the same if both lead to the same place."""
    console = kind(thread, out)
    return console, console if _same_place(out, err) else kind(thread, err)


def _same_place(out: TextIO | None, err: TextIO | None) -> bool:
    descriptors = [find_descriptor(stream) for stream in (out, err)]
    if None in descriptors:
        return out is err
    first, second = (os.fstat(descriptor) for descriptor in descriptors if descriptor is not None)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)

"""A console that several processes share: whole lines, bounded memory, and never a wait for its reader."""

from __future__ import annotations

import codecs
import logging
import os
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO, TypeVar

from ...world.processes.kept_process import Loop
from .lines import Labeller
from .outlet import Outlet, find_descriptor

logger = logging.getLogger(__name__)

FULL_BYTES = 1024 * 1024  # waiting for a slow reader; the streams that come here are not read meanwhile

Kind = TypeVar("Kind", bound="Console")


@dataclass
class _Shown:
    """What a stream showed while another was in the midst of a long line."""

    source: Labeller
    text: bytes
    goes_on: bool


class Console:
    """Writes to a descriptor, or to a text stream that has none. On the loop's thread only.

    A reader that went away ends the writing and nothing else. A line that is too long to be held comes in parts; what
    other streams show meanwhile waits behind it, until the line ends or its stream lets go of the console.
    """

    def __init__(self, loop: Loop, target: TextIO | None) -> None:
        self._loop = loop
        self._outlet = Outlet(target) if target is not None and find_descriptor(target) is not None else None
        self._text = target if self._outlet is None else None
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._waiting: deque[bytes] = deque()
        self._num_waiting = 0
        self._watched = False
        self._line_of: Labeller | None = None
        self._when_empty: list[tuple[Labeller | None, Callable[[], None]]] = []
        self._holder: Labeller | None = None  # in the midst of a long line
        self._behind: deque[_Shown] = deque()
        self._num_behind = 0
        self._is_catching_up = False

    @property
    def is_full(self) -> bool:
        return self._num_waiting >= FULL_BYTES

    def is_full_for(self, source: Labeller) -> bool:
        """Whether a stream should not be read now; one that others wait for is, if what it wrote is taken."""
        return self.is_full or (source is not self._holder and self._num_behind >= FULL_BYTES)

    def show(self, source: Labeller, text: bytes, *, goes_on: bool = False) -> None:
        """Write ``text`` of a stream; the unfinished line of another is ended first.

        ``goes_on``: the rest of its last line comes soon, and others wait for it. ``let_go`` takes that back.
        """
        if not text:
            return
        if self._holder not in (None, source):
            self._behind.append(_Shown(source, text, goes_on))
            self._num_behind += len(text)
            return
        self._show_now(source, text)
        if goes_on:
            self._holder = source
        elif self._holder is not None and text.endswith(b"\n"):
            self.let_go(source)

    def let_go(self, source: Labeller) -> None:
        """The rest of a long line is not to be waited for any more."""
        for each in self._behind:
            if each.source is source:
                each.goes_on = False
        if self._holder is not source:
            return
        self._holder, self._num_behind = None, 0
        behind, self._behind = self._behind, deque()
        self._is_catching_up = True
        for each in behind:
            self.show(each.source, each.text, goes_on=each.goes_on)
        self._is_catching_up = False
        if not self._waiting:
            self._tell_empty()

    def _show_now(self, source: Labeller, text: bytes) -> None:
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
        elif self._holder is not None and self._unfinished_behind(source):
            self._behind.append(_Shown(source, b"\n", goes_on=False))
        self.let_go(source)

    def when_empty(self, callback: Callable[[], None], source: Labeller | None = None) -> None:
        """Call ``callback`` once all was written, or cannot be. ``source``: the stream whose turn to write it is."""
        if self._is_empty_for(source):
            callback()
        else:
            self._when_empty.append((source, callback))

    def _is_empty_for(self, source: Labeller | None) -> bool:
        if self._waiting or self._is_catching_up:
            return False
        return not self._behind or (source is not None and source is self._holder)

    def _unfinished_behind(self, source: Labeller) -> bool:
        last = next((each for each in reversed(self._behind) if each.source is source), None)
        return last is not None and not source.exact and not last.text.endswith(b"\n")

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
            self._loop.register(self._outlet.fd, select.EPOLLOUT, self)
            self._watched = True

    def _unwatch(self) -> None:
        if self._watched and self._outlet is not None:
            self._loop.unregister(self._outlet.fd)
        self._watched = False

    def _give_up(self, error: Exception) -> None:
        logger.debug("the console takes no more output: %s", error)
        self.close()

    def _drop(self) -> None:
        self._waiting.clear()
        self._behind.clear()
        self._holder, self._num_waiting, self._num_behind = None, 0, 0
        self._tell_empty()

    def _tell_empty(self) -> None:
        waiting, self._when_empty = self._when_empty, []
        for source, callback in waiting:
            self.when_empty(callback, source)


def open_consoles(loop: Loop, out: TextIO | None, err: TextIO | None, kind: type[Kind]) -> tuple[Kind, Kind]:
    """Return the consoles for stdout and stderr: one and the same if both lead to the same place."""
    console = kind(loop, out)
    return console, console if _same_place(out, err) else kind(loop, err)


def _same_place(out: TextIO | None, err: TextIO | None) -> bool:
    descriptors = [find_descriptor(stream) for stream in (out, err)]
    if None in descriptors:
        return out is err
    first, second = (os.fstat(descriptor) for descriptor in descriptors if descriptor is not None)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


class LossyConsole(Console):
    """A terminal that was stopped with Ctrl-S must not stop a service. The log files have all of it."""

    _num_dropped = 0

    @property
    def is_full(self) -> bool:
        """Never: the pipes of members are always read."""
        return False

    @property
    def owes(self) -> bool:
        return bool(self._waiting)

    def is_full_for(self, source: Labeller) -> bool:
        return False

    def show(self, source: Labeller, text: bytes, *, goes_on: bool = False) -> None:
        if self._num_waiting + self._num_behind >= FULL_BYTES:
            self._num_dropped += len(text)
            return
        if self._num_dropped and text:
            note = b"... %d bytes were not shown, because nobody read this output\n" % self._num_dropped
            self._num_dropped = 0
            self._write(note)
        super().show(source, text, goes_on=goes_on)

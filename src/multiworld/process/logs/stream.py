"""One output stream of a process: its pipe is read to the end, and what comes goes to its file and the console."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Collection
from pathlib import Path

from ...world.processes.kept_process import Loop
from .console import Console
from .lines import LONGEST_KEPT, Labeller, LineBuffer, LineFilter, Tail
from .log_file import LogFile
from .route import Route

CHUNK_BYTES = 64 * 1024
LAST_BYTES = 1024 * 1024  # of a pipe that is given up: all that a pipe holds, not all that a grandchild may write
PARTIAL_S = 0.2  # a line without an end is shown after that: a prompt, a progress bar


class OutputStream:
    """Reads one pipe, on the loop's thread. ``on_end`` is called once, when it ended or was given up.

    ``followers`` are called with whole lines and their prefix, wherever else these go.
    """

    def __init__(
        self,
        loop: Loop,
        fd: int,
        route: Route,
        console: Console,
        label: Labeller,
        followers: Collection[Callable[[bytes], None]],
        on_end: Callable[[], None],
    ) -> None:
        self.tail = Tail()
        self.label = label
        self._loop, self._fd, self._console, self._on_end = loop, fd, console, on_end
        self._on_console = route.on_console
        self._file = LogFile(Path(route.file)) if route.file else None
        self._filter = LineFilter(route.needles)
        try:
            self._filtered = LogFile(Path(route.filtered)) if route.filtered else None
        except OSError:
            if self._file is not None:
                self._file.close()
            raise
        self._followers, self._followed = followers, LineBuffer(LONGEST_KEPT)
        self._lines = LineBuffer()
        self._partial_since = 0.0
        self._timing = False
        self._goes_on = False  # a part of a line was shown, and the rest is on its way
        self._paused = False
        self._ended = False
        os.set_blocking(fd, False)
        loop.register(fd, select.EPOLLIN, self)

    def on_ready(self, events: int) -> None:
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._end()
            return
        self.take(chunk)
        if self._on_console and self._console.is_full_for(self.label):
            self._pause()

    def on_failure(self, error: BaseException) -> None:
        self._end()

    def close_descriptor(self) -> None:
        os.close(self._fd)

    def take(self, chunk: bytes) -> None:
        """Write what the process, or somebody for it, has to say."""
        self.tail.feed(chunk)
        if self._file is not None:
            self._file.write(chunk)
        if self._filtered is not None:
            self._filtered.write(self.label_lines(self._filter.feed(chunk)))
        if self._followers:
            self._tell_followers(self._followed.feed(chunk))
        else:
            self._followed.take()  # a beginning that nobody waits for any more
        if self._on_console:
            self._show(chunk)

    def give_up(self) -> None:
        """Take what is in the pipe now, and close it, although somebody may still hold its other end. Idempotent."""
        num_taken = 0
        while not self._ended and num_taken < LAST_BYTES:
            try:
                chunk = os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                break
            self.take(chunk)
            num_taken += len(chunk)
        self._end()

    def label_lines(self, lines: bytes) -> bytes:
        """Return whole lines with the prefix, beside what is shown on the console."""
        return Labeller(self.label.prefix).label(lines)

    def _tell_followers(self, lines: bytes) -> None:
        if lines:
            labelled = self.label_lines(lines)
            for follower in list(self._followers):
                follower(labelled)

    def _show(self, chunk: bytes) -> None:
        if self.label.exact:
            self._console.show(self.label, self._lines.take() + chunk)
            return
        was_partial = self._lines.is_partial
        whole = self._lines.feed(chunk)
        self._goes_on = bool(whole) and not whole.endswith(b"\n")  # too long to be held
        self._console.show(self.label, whole, goes_on=self._goes_on)
        if self._goes_on or (self._lines.is_partial and (whole or not was_partial)):
            self._partial_since = time.monotonic()
            self._time_partial(PARTIAL_S)

    def _time_partial(self, delay_s: float) -> None:
        if not self._timing:
            self._timing = True
            self._loop.call_later(delay_s, self._show_partial)

    def _show_partial(self) -> None:
        self._timing = False
        if self._ended or not (self._goes_on or self._lines.is_partial):
            return
        left_s = self._partial_since + PARTIAL_S - time.monotonic()
        if left_s > 0:  # the line that the timer was for was ended in time
            self._time_partial(left_s)
        elif self._paused or self._has_more():  # it is not the process that takes its time
            self._time_partial(PARTIAL_S)
        else:
            self._goes_on = False
            self._console.show(self.label, self._lines.take())
            self._console.let_go(self.label)

    def _has_more(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return any(events & select.POLLIN for _, events in poll.poll(0))

    def _pause(self) -> None:
        """Leave the rest in the pipe, so that the process waits and not our memory grows."""
        self._paused = True
        self._loop.unregister(self._fd)
        self._console.when_empty(self._resume, self.label)

    def _resume(self) -> None:
        if self._paused and not self._ended:
            self._paused = False
            self._loop.register(self._fd, select.EPOLLIN, self)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if not self._paused:
            self._loop.unregister(self._fd)
        os.close(self._fd)
        if self._filtered is not None:
            last = self._filter.finish()
            self._filtered.write(self.label_lines(last + b"\n" if last else b""))  # others write behind it
        if self._followers:
            self._tell_followers(self._followed.take())
        if self._on_console:
            self._console.show(self.label, self._lines.take())
            self._console.end_line(self.label)
        for file in (self._file, self._filtered):
            if file is not None:
                file.close()
        self._on_end()

"""The output of one process: two pipes, each read to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from ...world.processes.kept_process import Loop
from .console import Console
from .lines import Labeller
from .route import Route
from .stream import OutputStream

LAST_LINES = 20


class ProcessOutput:
    """Give ``stdout_fd`` and ``stderr_fd`` to the process that is started, then call ``started``.

    Do so also if it could not be started. ``consoles`` and ``routes`` are those of stdout and stderr. ``on_end`` is
    called once both pipes were read to their end or given up. All on the loop's thread, except where a method says
    otherwise. Raises OSError if no descriptors are left.
    """

    def __init__(
        self,
        loop: Loop,
        consoles: tuple[Console, Console],
        routes: tuple[Route, Route],
        prefix: bytes,
        *,
        exact: bool = False,
        followers: Collection[Callable[[bytes], None]] = (),
        on_end: Callable[[], None],
    ) -> None:
        self._loop, self._followers, self._on_end = loop, followers, on_end
        self._started, self._num_open = False, 2
        self._stdout, self.stdout_fd = self._open(consoles[0], routes[0], Labeller(prefix, exact=exact))
        try:
            self._stderr, self.stderr_fd = self._open(consoles[1], routes[1], Labeller(prefix, exact=exact))
        except OSError:
            os.close(self.stdout_fd)
            loop.call_later(0.0, self._stdout.give_up)
            raise

    @property
    def is_open(self) -> bool:
        """Whether a pipe was not read to its end yet."""
        return self._num_open > 0

    def started(self) -> None:
        """Close this process's copies of the ends that the other one writes to. From any thread; idempotent."""
        if not self._started:
            self._started = True
            os.close(self.stdout_fd)
            os.close(self.stderr_fd)

    def relabel(self, prefix: bytes, *, exact: bool) -> None:
        """Put another prefix before the lines that come from now on."""
        for stream in (self._stdout, self._stderr):
            stream.label.prefix, stream.label.exact = prefix, exact

    def take_note(self, text: bytes) -> None:
        """Add to stderr what others found out about the process. Dropped once both pipes were read to their end."""
        if self.is_open:
            self._stderr.take(text)

    def give_up(self) -> None:
        """Take what is in the pipes now, and close them, although a grandchild may hold them open. Idempotent."""
        self._stdout.give_up()
        self._stderr.give_up()

    def tail(self) -> list[str]:
        """Return the lines at the end of stderr (up to 16 KiB), or of stdout if stderr was silent. From any thread."""
        return self._stderr.tail.lines() or self._stdout.tail.lines()

    def tails(self) -> tuple[list[str], list[str]]:
        """Return the lines at the end of stdout and of stderr (up to 16 KiB each). From any thread."""
        return self._stdout.tail.lines(), self._stderr.tail.lines()

    def last_lines(self) -> list[str]:
        """Return the last lines for a failure record, at most ``LAST_LINES``. From any thread."""
        return self.tail()[-LAST_LINES:]

    def _open(self, console: Console, route: Route, label: Labeller) -> tuple[OutputStream, int]:
        read_fd, write_fd = os.pipe()
        try:
            stream = OutputStream(self._loop, read_fd, route, console, label, self._followers, self._stream_ended)
        except OSError:  # no descriptor was left for its files
            os.close(read_fd)
            os.close(write_fd)
            raise
        return stream, write_fd

    def _stream_ended(self) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            self._on_end()

"""What members write: with their names before each line to the host's own output, and into a file for each."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path

from ....process.logs.console import LossyConsole, open_consoles
from ....process.logs.lines import Labeller
from ....process.logs.log_file import LogFile
from ....process.logs.output import ProcessOutput
from ....process.logs.route import Route
from ....wire.progress.thread import ProgressThread
from .recent_lines import LinesTold, RecentLines

LARGEST_BYTES = 16 * 1024 * 1024  # of a member's log file
MAX_REMEMBERED = 1100  # members whose last lines are kept: as many as a stage may have, and some that ended
SHOWN = Route(file=None, on_console=True)


class Outputs:
    """The host's console, and the folder of the log files (None: there are none)."""

    def __init__(self, loop: ProgressThread, folder: Path | None) -> None:
        self._loop, self._folder = loop, folder
        self._out, self._err = open_consoles(loop, sys.stdout, sys.stderr, LossyConsole)
        self._own_label = Labeller(b"[host] ")
        self._recent: OrderedDict[str, RecentLines] = OrderedDict()  # also of members that have ended

    def open(self, member: str) -> ProcessOutput:
        """Both streams of a member share one file. Raises OSError if there are no descriptors left."""
        consoles, routes, prefix = (self._out, self._err), (SHOWN, SHOWN), f"[{member}] ".encode()
        recent = self._recent.setdefault(member, RecentLines())
        self._recent.move_to_end(member)
        while len(self._recent) > MAX_REMEMBERED:
            self._recent.popitem(last=False)
        if self._folder is None:
            return ProcessOutput(self._loop, consoles, routes, prefix, followers=(recent.take,), on_end=_nothing)
        file = LogFile(self._folder / f"{member.replace('/', '_')}.log", largest=LARGEST_BYTES, is_private=True)
        followers = (recent.take, file.write)
        try:
            return ProcessOutput(self._loop, consoles, routes, prefix, followers=followers, on_end=file.close)
        except BaseException:
            file.close()
            raise

    def lines(self, member: str, *, since: int | None, last: int) -> LinesTold | None:
        """Return what a member wrote after its first ``since`` lines, or the ``last`` lines; None if it is unknown."""
        recent = self._recent.get(member)
        if recent is None:
            return None
        return recent.last(last) if since is None else recent.since(since)

    def note(self, text: str) -> None:
        """Show a line of the host process itself."""
        self._err.show(self._own_label, f"{text}\n".encode(errors="backslashreplace"))

    @property
    def owe(self) -> bool:
        """Whether something was not written yet that still can be."""
        return self._out.owes or self._err.owes

    def close(self) -> None:
        self._out.close()
        self._err.close()


def _nothing() -> None: ...

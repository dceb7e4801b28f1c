"""What members write: with their names before each line to the host's own output, and into a file for each."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

from ...elastic.logs.places import Route
from ...process.logs.console import open_consoles
from ...process.logs.lines import Labeller
from ...process.logs.log_file import LogFile
from ...process.logs.lossy_console import LossyConsole
from ...process.logs.stream import OutputStream
from ...wire.progress import ProgressThread
from .loop import HostLoop

__all__ = ["LAST_LINES", "MemberOutput", "Outputs"]

LAST_LINES = 20


class Outputs:
    """The host's console, and the folder of the log files (None: there are none)."""

    def __init__(self, loop: HostLoop, folder: Path | None) -> None:
        self.loop = cast(ProgressThread, loop)  # these parts use only what both have
        self.out, self.err = open_consoles(self.loop, sys.stdout, sys.stderr, LossyConsole)
        self._folder = folder
        self._own_label = Labeller(b"[host] ")

    def open(self, member: str) -> MemberOutput:
        """Raises OSError if there are no descriptors left."""
        file = None if self._folder is None else LogFile(self._folder / f"{member.replace('/', '_')}.log")
        try:
            return MemberOutput(self, member, file)
        except BaseException:
            if file is not None:
                file.close()
            raise

    def note(self, text: str) -> None:
        """Show a line of the host process itself."""
        self.err.show(self._own_label, f"{text}\n".encode(errors="backslashreplace"))

    @property
    def owe(self) -> bool:
        """Whether something was not written yet that still can be."""
        return self.out.owes or self.err.owes

    def close(self) -> None:
        self.out.close()
        self.err.close()

    def close_descriptors(self) -> None:
        """In a forked child."""
        self.out.close_descriptor()
        self.err.close_descriptor()


class MemberOutput:
    """Two pipes. ``stdout_fd`` and ``stderr_fd`` are the member's ends."""

    def __init__(self, outputs: Outputs, member: str, file: LogFile | None) -> None:
        self._file, self._num_open = file, 2
        self._streams: list[OutputStream] = []
        ends = []
        try:
            for console in (outputs.out, outputs.err):
                read_fd, write_fd = os.pipe()
                ends.append(write_fd)
                label = Labeller(f"[{member}] ".encode())
                followers = () if file is None else (file.write,)
                route = Route(file=None, on_console=True)
                stream = OutputStream(outputs.loop, read_fd, route, console, label, followers, self._stream_ended)
                self._streams.append(stream)
        except BaseException:
            for fd in ends:
                os.close(fd)
            for stream in self._streams:
                stream.give_up()
            raise
        self.stdout_fd, self.stderr_fd = ends

    def started(self) -> None:
        """Close the member's ends here."""
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)

    def finish(self) -> list[str]:
        """Take what is in the pipes, close them, and return the last lines: of stderr, or of stdout if it is silent."""
        for stream in self._streams:
            stream.give_up()
        out, err = (stream.tail.lines() for stream in self._streams)
        return (err or out)[-LAST_LINES:]

    def close_file_descriptor(self) -> None:
        """In a forked child: the pipes are closed with the loop."""
        if self._file is not None:
            self._file.close()

    def _stream_ended(self) -> None:
        self._num_open -= 1
        if self._num_open == 0 and self._file is not None:
            self._file.close()

"""The host's own output, shared by all members: what its reader does not take in time is lost, and nobody waits."""

from __future__ import annotations

import os
from typing import TextIO

from ...elastic.logs.console import FULL_BYTES, Console
from ...elastic.logs.lines import Labeller
from ...elastic.logs.outlet import find_descriptor
from ...wire.progress import ProgressThread

__all__ = ["LossyConsole", "open_lossy"]


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

    def show(self, source: Labeller, text: bytes) -> None:
        if self._num_waiting >= FULL_BYTES:
            self._num_dropped += len(text)
            return
        if self._num_dropped and text:
            note = b"... %d bytes were not shown, because nobody read this output\n" % self._num_dropped
            self._num_dropped = 0
            self._write(note)
        super().show(source, text)


def open_lossy(thread: ProgressThread, out: TextIO | None, err: TextIO | None) -> tuple[LossyConsole, LossyConsole]:
    """Return the consoles for stdout and stderr: one and the same if both lead to the same place."""
    console = LossyConsole(thread, out)
    return console, console if _same_place(out, err) else LossyConsole(thread, err)


def _same_place(out: TextIO | None, err: TextIO | None) -> bool:
    descriptors = [find_descriptor(stream) for stream in (out, err)]
    if None in descriptors:
        return out is err
    first, second = (os.fstat(descriptor) for descriptor in descriptors if descriptor is not None)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)

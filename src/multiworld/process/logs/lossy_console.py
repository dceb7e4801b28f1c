"""The host's own output, shared by all members: what its reader does not take in time is lost, and nobody waits."""

from __future__ import annotations

from .console import FULL_BYTES, Console
from .lines import Labeller

__all__ = ["LossyConsole"]


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

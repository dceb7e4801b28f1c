"""For how long a process has been stopped, by a signal, a debugger or a frozen container, as far as was seen."""

from __future__ import annotations

from .procfs import STOPPED, process_start_time, process_state


class StoppedTime:
    """Of a running child of this process."""

    def __init__(self, pid: int) -> None:
        self._pid, self._start_time = pid, process_start_time(pid) or 0
        self._since: float | None = None

    def look(self, now: float) -> float:
        """Return the seconds since the first of the looks that found it stopped, without one that did not; else 0."""
        if process_state(self._pid, self._start_time) != STOPPED:
            self._since = None
            return 0.0
        self._since = now if self._since is None else self._since
        return now - self._since

    def forget(self) -> None:
        """Count from the next look: this process did not run, and both may have been stopped together."""
        self._since = None

"""Decide what follows, on the host where a command runs, as the agents on its hosts start and end. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from .far_order import END_S

SSH_FAILED = 255
BAD_INPUT = 2
SIGNALLED = 128
KILLED, TERMINATED = SIGNALLED + 9, SIGNALLED + 15
REFUSES = "cannot take part"
BEGIN_S = 60.0
"""When all agents have run for so long, the job has begun, though nobody has seen it said."""
AGREE_S = 3.0
"""Within this time all agents end, if the job has ended."""
AT_ONCE_S = 15.0
"""For the hosts to end in once they were told to do so at once."""
HINTS = {
    127: "is that Python there? --remote-python names another",
    126: "is that Python there? --remote-python names another",
    1: "is multiworld installed for that Python? --remote-python names another",
}


class Act(enum.Enum):
    """What the hosts that still run are told, or what is done to their connections."""

    END = "end"
    END_AT_ONCE = "end at once"
    CUT = "cut"


class Course:
    """One command on several hosts, by their indices. What is to be said, and done, waits in ``said`` and ``acts``."""

    def __init__(self, labels: Sequence[str], *, end_s: float = END_S) -> None:
        self._labels, self._end_s = labels, end_s
        self._ready: set[int] = set()
        self._begun_at: float | None = None
        self._ends: dict[int, int] = {}
        """The exit statuses of the hosts that have ended, in that order."""
        self._untold: dict[int, float] = {}
        """Those that ended while others went on, and when that is to be said, unless all have ended by then."""
        self._due: list[tuple[float, Act]] = []
        self._num_signals = 0
        self._signum = 0
        self._refused: int | None = None
        self.said: list[str] = []
        self.acts: list[Act] = []

    @property
    def is_over(self) -> bool:
        return len(self._ends) == len(self._labels)

    @property
    def due_at(self) -> float | None:
        """When ``poll`` has something to do, if nothing happens before."""
        times = [*self._untold.values(), *(at for at, _ in self._due)]
        return min(times, default=None)

    @property
    def running(self) -> list[int]:
        return [index for index in range(len(self._labels)) if index not in self._ends]

    def is_ready(self, index: int) -> bool:
        return index in self._ready

    def ready(self, index: int, now: float) -> None:
        """The agent there was started."""
        self._ready.add(index)
        if len(self._ready) == len(self._labels) and self._begun_at is None:
            self._begun_at = now + BEGIN_S

    def announced(self, now: float) -> None:
        """The coordinator has said that the job has begun."""
        self._begun_at = now

    def signalled(self, signum: int, now: float) -> None:
        """The user wishes that it ends; says it again; has lost patience."""
        self._signum = self._signum or signum
        self._num_signals += 1
        if self._num_signals == 1:
            self._end(now)
        else:
            self.acts.append(Act.END_AT_ONCE if self._num_signals == 2 else Act.CUT)

    def ended(self, index: int, status: int, now: float, said: str = "") -> None:
        """The far end of a host has ended, or the connection to it. ``said``: its last line before it was ready."""
        self._ends[index] = status
        if self._due or self._num_signals:  # the others are to end, too
            return
        label = self._labels[index]
        if index not in self._ready:
            self._refuse(status, self._why_not(label, status, said), now)
        elif status == BAD_INPUT:  # its launcher has said what makes no sense
            self._refuse(status, "", now)
        elif status and (self._begun_at is None or now < self._begun_at):
            self._refuse(status, f"{label} {_how(status)} before the job had begun", now)
        else:
            self._untold[index] = now + AGREE_S

    def poll(self, now: float) -> None:
        """Time has gone by."""
        for index, at in list(self._untold.items()):
            if now >= at:
                del self._untold[index]
                self._tell_left(index)
        while self._due and now >= self._due[0][0]:
            _, act = self._due.pop(0)
            if self.running:
                names = ", ".join(self._labels[index] for index in self.running)
                what = "is ended at once" if act is Act.END_AT_ONCE else "is left to end by itself"
                self.said.append(f"what runs on {names} has not ended in time, and {what}")
                self.acts.append(act)

    @property
    def status(self) -> int:
        """The exit status: the launcher's, of the host that ended last; one that was lost knows nothing of it."""
        if self._refused is not None:
            return self._refused
        told = [status for status in self._ends.values() if status not in (SSH_FAILED, KILLED)]
        # Launchers are ended by SIGTERM, also where another signal came here.
        if self._signum and (not told or told[-1] == TERMINATED):
            return SIGNALLED + self._signum
        return [*self._ends.values(), *told][-1]

    def _end(self, now: float) -> None:
        self.acts.append(Act.END)
        at_once = now + self._end_s
        self._due = [(at_once, Act.END_AT_ONCE), (at_once + AT_ONCE_S, Act.CUT)]
        self._untold.clear()

    def _refuse(self, status: int, text: str, now: float) -> None:
        self._refused = status or 1
        if text:
            self.said.append(text + (", and the job was ended on the other hosts" if self.running else ""))
        self._end(now)

    def _why_not(self, label: str, status: int, said: str) -> str:
        told = f": {said}" if said else ""
        if status == SSH_FAILED:
            return f"{label} cannot be reached{told or ': ssh said nothing'}"
        if status == BAD_INPUT and REFUSES in said:  # the far end has found the whole sentence
            return said[said.index(label) if label in said else 0 :]
        hint = HINTS.get(status)
        return f"{label} {REFUSES}: the command there {_how(status)}{told}" + (f" ({hint})" if hint else "")

    def _tell_left(self, index: int) -> None:
        status, left = self._ends[index], len(self.running)
        if left:
            others = f"the job goes on with {left} host{'s' if left > 1 else ''}"
            how = "has left the job" if status == 0 else _how(status)
            self.said.append(f"{self._labels[index]} {how}; {others}")


def _how(status: int) -> str:
    if status == SSH_FAILED:
        return "was lost: the connection to it has ended"
    return f"ended with status {status}"

"""Decide which phases a job may go through: one enum and one transition table. Pure."""

from __future__ import annotations

import enum

__all__ = ["InvalidPhaseChangeError", "Phase", "PhaseChange", "advance"]


class Phase(enum.Enum):
    GATHERING = "gathering"  # there are not enough hosts
    RESUMING = "resuming"  # another coordinator died; its agents come one by one
    RUNNING = "running"
    STOPPING = "stopping"  # all workers, to be started again together
    ENDING = "ending"  # all workers, for good
    OVER = "over"


class PhaseChange(enum.Enum):
    """What happens to a job."""

    FORMED = "formed"  # enough hosts are there
    RESUMED = "resumed"  # the agents that were expected are there, or were waited for long enough
    FOUND_UNFORMED = "found unformed"  # the coordinator that died had started no workers yet
    STOP = "stop"
    STOPPED = "stopped"
    END = "end"
    ENDED = "ended"


_TABLE: dict[tuple[Phase, PhaseChange], Phase] = {
    (Phase.GATHERING, PhaseChange.FORMED): Phase.RUNNING,
    (Phase.GATHERING, PhaseChange.END): Phase.ENDING,
    (Phase.RESUMING, PhaseChange.RESUMED): Phase.RUNNING,
    (Phase.RESUMING, PhaseChange.FOUND_UNFORMED): Phase.GATHERING,
    (Phase.RUNNING, PhaseChange.STOP): Phase.STOPPING,
    (Phase.RUNNING, PhaseChange.END): Phase.ENDING,
    (Phase.STOPPING, PhaseChange.STOPPED): Phase.GATHERING,
    (Phase.STOPPING, PhaseChange.END): Phase.ENDING,
    (Phase.ENDING, PhaseChange.ENDED): Phase.OVER,
}


class InvalidPhaseChangeError(RuntimeError):
    """A change that the table does not hold: a fault in this package, never of its user."""

    def __init__(self, phase: Phase, change: PhaseChange) -> None:
        super().__init__(phase, change)
        self.phase, self.change = phase, change

    def __str__(self) -> str:
        return f"a job that is {self.phase.value} cannot change by {self.change.value!r}"


def advance(phase: Phase, change: PhaseChange) -> Phase:
    """Return the phase after the change, or raise ``InvalidPhaseChangeError``."""
    after = _TABLE.get((phase, change))
    if after is None:
        raise InvalidPhaseChangeError(phase, change)
    return after

"""Decide which phases a job may go through: one enum and one transition table. Pure."""

from __future__ import annotations

import enum

from ...wire.transitions import TransitionTable


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


_TABLE = TransitionTable(
    "a job",
    {
        (Phase.GATHERING, PhaseChange.FORMED): Phase.RUNNING,
        (Phase.GATHERING, PhaseChange.END): Phase.ENDING,
        (Phase.RESUMING, PhaseChange.RESUMED): Phase.RUNNING,
        (Phase.RESUMING, PhaseChange.FOUND_UNFORMED): Phase.GATHERING,
        (Phase.RUNNING, PhaseChange.STOP): Phase.STOPPING,
        (Phase.RUNNING, PhaseChange.END): Phase.ENDING,
        (Phase.STOPPING, PhaseChange.STOPPED): Phase.GATHERING,
        (Phase.STOPPING, PhaseChange.END): Phase.ENDING,
        (Phase.ENDING, PhaseChange.ENDED): Phase.OVER,
    },
)

advance = _TABLE.advance

"""Why an agent gives up: it finds no coordinator, or may not go on without the others."""

from __future__ import annotations

from ...errors import MultiworldError

__all__ = ["CutOffError", "LeftBehindError", "MeetingError", "MeetingPlaceError"]


class MeetingError(MultiworldError):
    """The other agents of the job were not found."""

    def __init__(self, where: str, timeout_s: float, why: str) -> None:
        super().__init__(where, timeout_s, why)
        self.where, self.timeout_s, self.why = where, timeout_s, why

    def __str__(self) -> str:
        return f"no coordinator of this job was found at {self.where} within {self.timeout_s:.3g} s; {self.why}"


class MeetingPlaceError(MultiworldError):
    """The agents cannot meet where they were told to: something else is there, or nobody may listen there."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"the job cannot meet at {self.where}: {self.reason}; choose another port or endpoint"


class CutOffError(MultiworldError):
    """The other agents cannot be reached, and may go on without this one."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(silent_s)
        self.silent_s = silent_s

    def __str__(self) -> str:
        return (
            f"cut off from most of the job's other agents for {self.silent_s:.1f} s, and they may go on without this "
            "host. Start an agent here again when they can be reached; --cut-off-timeout says how long it waits"
        )


class LeftBehindError(MultiworldError):
    """The other agents are gone, and may have ended the job while this one was away."""

    def __init__(self, num_others: int) -> None:
        super().__init__(num_others)
        self.num_others = num_others

    def __str__(self) -> str:
        return (
            "this host was stopped, or cut off from the job's other agents, and they are gone now: either the job has "
            f"ended without it, or all {self.num_others} of them died. See their logs; to go on, start the job again"
        )

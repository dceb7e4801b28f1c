"""What is known of a worker that failed, and which of several failed first. Pure: values, for JSON and for people."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...process.signal_names import signal_name
from ...wire.messages import Json
from ...wire.shortened import beginning

LONGEST_SUMMARY = 300


class FailureCause(enum.Enum):
    """How a worker came to its end."""

    EXCEPTION = "exception"  # Python told about it, in the error file or on stderr
    EXIT = "exit"  # a status that is not 0, and no more
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out-of-memory"
    STOPPED = "stopped"  # by SIGSTOP or a debugger, for longer than the lease
    HUNG = "hung"  # past its progress deadline
    UNINTERRUPTIBLE = "uninterruptible"  # asleep in the kernel, where nothing reaches it
    OVERRUN = "overrun"  # past a timer that it had set itself, with torch.distributed.elastic.timer
    AGENT_STOPPED = "agent stopped"  # so it was ended, before others gave its place away
    HOST_LOST = "host lost"
    START_FAILED = "start failed"


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """One worker process that failed.

    ``returncode`` is as ``subprocess`` has it: negative for a signal; None if nobody could see it, on a lost host.
    ``at_us``: microseconds since the epoch, of a clock that never steps; to compare hosts, the coordinator's.
    ``caused_by_rank``: the rank, counted in the world ``caused_by_world``, that broke it; ``UNKNOWN_RANK`` if another
    rank is the cause but nobody says which; None for a failure that is nobody else's consequence.
    """

    rank: int
    local_rank: int
    node_rank: int
    role: str
    hostname: str
    pid: int
    generation: int
    returncode: int | None
    at_us: int
    cause: FailureCause
    message: str = ""
    traceback: str | None = None
    error_file: str | None = None
    error_data: Mapping[str, Json] | None = None
    last_lines: tuple[str, ...] = ()
    caused_by_rank: int | None = None
    caused_by_world: str | None = None
    text: str = ""
    """One line: what happened to it."""

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", self._summary())

    @property
    def exit_status(self) -> int:
        """The launcher's exit status if this is what ended the job: 128 + signal, or the worker's own."""
        if self.returncode is None or self.returncode == 0:
            return 1
        return 128 - self.returncode if self.returncode < 0 else self.returncode & 0xFF or 1

    @property
    def signal_name(self) -> str | None:
        """``SIGKILL``, say, if a signal ended it."""
        if self.returncode is None or self.returncode >= 0:
            return None
        return signal_name(-self.returncode)

    def _summary(self) -> str:
        first_line = beginning(self.message.strip().partition("\n")[0], LONGEST_SUMMARY)
        by_signal = f"killed by {self.signal_name}" if self.signal_name else ""
        said = {
            FailureCause.EXIT: f"exit code {self.returncode}",
            FailureCause.SIGNAL: by_signal,
            FailureCause.OUT_OF_MEMORY: "out of memory" + (f": {by_signal}" if by_signal else ""),
            FailureCause.STOPPED: "stopped, and did not go on",
            FailureCause.HUNG: "made no progress",
            FailureCause.UNINTERRUPTIBLE: "hangs in the kernel, in uninterruptible sleep",
            FailureCause.AGENT_STOPPED: "ended, because its agent was stopped",
            FailureCause.HOST_LOST: f"lost with its host {self.hostname}",
            FailureCause.START_FAILED: "could not be started",
        }.get(self.cause, "")
        return ": ".join(part for part in (said, first_line) if part) or "failed"


def first_failure(failures: Iterable[WorkerFailure]) -> WorkerFailure:
    """Return the failure that the others followed from. Raises ValueError if there is none."""
    ordered = in_causal_order(failures)
    if not ordered:
        raise ValueError("nothing failed, so nothing failed first")
    return ordered[0]


def in_causal_order(failures: Iterable[WorkerFailure]) -> list[WorkerFailure]:
    """Return failures, causes before consequences, and by time where neither caused the other.

    A worker that lost a peer may exit, and be reported, before that peer: an exception takes its time to end a
    process, and hosts report over different paths. So what says that another rank is its cause comes later than what
    does not, whatever the clocks say.
    """
    listed = list(failures)
    by_rank = {failure.rank: failure for failure in sorted(listed, key=lambda each: each.at_us, reverse=True)}
    return sorted(listed, key=lambda each: (_depth(each, by_rank, ()), each.at_us, each.rank))


def _depth(failure: WorkerFailure, by_rank: dict[int, WorkerFailure], seen: Sequence[int]) -> int:
    """Return how many failures led to this one, as far as they name each other; two that do so count as one."""
    if failure.caused_by_rank is None or failure.rank in seen:
        return 0
    cause = by_rank.get(failure.caused_by_rank)
    return 1 + (_depth(cause, by_rank, (*seen, failure.rank)) if cause is not None else 0)

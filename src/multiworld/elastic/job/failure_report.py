"""Say what happened when a job failed: one text for people, the same as JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from ...wire.messages import Json, to_json
from .failure import FailureCause, WorkerFailure
from .tracebacks import UNKNOWN_RANK

MAX_OTHERS = 8  # told one by one
MAX_TRACEBACK_LINES = 60


def describe(
    failure: WorkerFailure, others: Sequence[WorkerFailure], *, done: str = "", logs: str | None = None
) -> str:
    """Return the text that a person reads at the end of a failed job.

    ``others`` failed after it, in the order to be told; ``done``: what was done about it; ``logs``: the run's folder.
    """
    blocks = ["\n".join([f"Rank {_who(failure)} failed first: {failure.text}", f"  {_where(failure)}"])]
    if evidence := _evidence(failure):
        blocks.append(evidence)
    if others:
        blocks.append(_describe_others(failure, others))
    ends = [f"What was done: {done}"] if done else []
    if failure.error_file and failure.error_data is not None:
        ends.append(f"Its error file: {failure.error_file} (on {failure.hostname})")
    if logs:
        ends.append(f"Logs: {logs}")
    if ends:
        blocks.append("\n".join(ends))
    return "\n\n".join(blocks)


def report(
    failure: WorkerFailure, others: Sequence[WorkerFailure], *, run_id: str, done: str = "", logs: str | None = None
) -> Mapping[str, Json]:
    """Return the same as ``describe`` for programs, ready for JSON: ``failure.json`` in the run's folder."""
    return {
        "run_id": run_id,
        "exit_status": failure.exit_status,
        "first": _as_json(failure),
        "others": [_as_json(other) for other in others],
        "done": done,
        "logs": logs,
        "text": describe(failure, others, done=done, logs=logs),
    }


def _as_json(failure: WorkerFailure) -> Mapping[str, Json]:
    return {**to_json(failure), "exit_status": failure.exit_status}


def _who(failure: WorkerFailure) -> str:
    return f"{failure.rank}" if failure.role == "default" else f"{failure.rank} ({failure.role})"


def _where(failure: WorkerFailure) -> str:
    at = datetime.fromtimestamp(failure.at_us / 1e6, timezone.utc)
    ended = f"exit status {failure.exit_status}"
    return (
        f"on {failure.hostname} (node {failure.node_rank}, local rank {failure.local_rank}, pid {failure.pid}), "
        f"generation {failure.generation}, {ended}, at {at:%Y-%m-%d %H:%M:%S.%f} UTC"
    )


def _evidence(failure: WorkerFailure) -> str:
    if failure.traceback:
        lines = failure.traceback.rstrip("\n").split("\n")
        if len(lines) > MAX_TRACEBACK_LINES:
            half = MAX_TRACEBACK_LINES // 2
            lines = [*lines[:half], f"... {len(lines) - 2 * half} lines left out ...", *lines[-half:]]
        return _indented(lines)
    if lines := _without_blank_ends(failure.last_lines):
        return ("The last lines it wrote:\n" if len(lines) > 1 else "The last line it wrote:\n") + _indented(lines)
    return "" if failure.cause is FailureCause.HOST_LOST else "It wrote nothing."


def _describe_others(failure: WorkerFailure, others: Sequence[WorkerFailure]) -> str:
    told, before = [], failure.text
    for other in others[:MAX_OTHERS]:
        text = _briefly(other)
        told.append(f"  rank {_who(other)}, {_later(failure, other)}: {'the same' if text == before else text}")
        before = text
    if len(others) > MAX_OTHERS:
        told.append(f"  and {len(others) - MAX_OTHERS} more")
    count = "1 other worker" if len(others) == 1 else f"{len(others)} other workers"
    return "\n".join([f"{count} failed after it:", *told])


def _later(failure: WorkerFailure, other: WorkerFailure) -> str:
    seconds = (other.at_us - failure.at_us) / 1e6
    return f"{seconds:.3f} s later" if seconds >= 0 else "reported earlier"


def _briefly(other: WorkerFailure) -> str:
    if other.caused_by_rank is None:
        return other.text
    if other.caused_by_rank == UNKNOWN_RANK:
        return f"it lost a connection to another rank ({other.text})"
    if other.caused_by_world is None:
        return f"it ended with the error of rank {other.caused_by_rank}"
    return f"it lost rank {other.caused_by_rank} of world {other.caused_by_world!r}"


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _without_blank_ends(lines: Sequence[str]) -> list[str]:
    """Return the lines from the first to the last that has anything on it."""
    written = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[written[0] : written[-1] + 1]) if written else []

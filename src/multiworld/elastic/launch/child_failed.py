"""Hand failures over to torch: the exception with which torchrun ends, that ``record`` passes on to a scheduler."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ..job.failure import WorkerFailure, in_causal_order


def to_child_failed_error(
    failures: Iterable[WorkerFailure], *, name: str, error_dir: str | None = None
) -> ChildFailedError:
    """Return the exception to raise; ``get_first_failure`` of it is our first failure, by causes and not by seconds.

    ``error_dir``: a folder for a copy of the first error, if its file is on another host: ``record`` reads it from a
    file. Raises ValueError without failures.
    """
    ordered = in_causal_order(failures)
    if not ordered:
        raise ValueError("nothing failed, so there is no error to raise")
    first_s = ordered[0].at_us // 1_000_000
    converted: dict[int, ProcessFailure] = {}
    for number, failure in enumerate(ordered):
        error_file = _local_error_file(failure, error_dir if number == 0 else None)
        converted.setdefault(failure.rank, _convert(failure, error_file, first_s if number == 0 else first_s + 1))
    return ChildFailedError(name, converted)


def _convert(failure: WorkerFailure, error_file: str, not_before_s: int) -> ProcessFailure:
    returncode = failure.exit_status if failure.returncode is None else failure.returncode
    # without a file, which it would read again and trip over what is not as it expects
    converted = ProcessFailure(failure.local_rank, failure.pid, returncode, "")
    if error_file:
        converted.error_file = error_file
    converted.error_file_data = dict(failure.error_data) if failure.error_data else {"message": failure.text}
    converted.message = _message(failure)
    converted.timestamp = max(failure.at_us // 1_000_000, not_before_s)  # torch takes the smallest for the first
    return converted


def _message(failure: WorkerFailure) -> Any:
    """Return what torch shows as the traceback: a text, or the dictionary that ``record`` wrote."""
    recorded = (failure.error_data or {}).get("message")
    if isinstance(recorded, dict):
        return recorded
    return failure.traceback or "\n".join([failure.text, *failure.last_lines])


def _local_error_file(failure: WorkerFailure, error_dir: str | None) -> str:
    if failure.error_data is None:
        return ""
    if failure.error_file and os.path.isfile(failure.error_file):
        return failure.error_file
    if error_dir is None:
        return ""
    path = os.path.join(error_dir, f"error_rank_{failure.rank}.json")
    try:
        with open(path, "w") as file:
            json.dump(failure.error_data, file)
    except OSError:  # the disk is full, or the folder gone: the failure itself is told without it
        return ""
    return path

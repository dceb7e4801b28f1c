"""Decide which errors of a worker come again however often it is started, so that a job ends at once. Pure: text in.

A worker leaves text, see ``tracebacks``. This layer stands below ``multiworld.training``, so it knows its classes by
name.
"""

from __future__ import annotations

import enum
import re

from .tracebacks import RAISED, exception_line

_PREFIX = "multiworld.training.errors."
OF_ALL = frozenset(
    _PREFIX + name
    for name in (
        "BadStepError",
        "CheckpointMismatchError",
        "CheckpointVersionError",
        "GlobalBatchTooSmallError",
        "LayerTooLargeError",
        "LayersLostError",
        "ModelTooLargeError",
        "NoCommonCheckpointError",
        "PoisonedStepError",
        "StepError",
        "TooFewNodesError",
    )
) | {"multiworld.model.errors.CutError"}
"""Errors that one worker raises for all: the program, its model, its data or its checkpoint is wrong."""
OF_ONE = frozenset({_PREFIX + "SetupError"})
"""Errors that may be one worker's alone, such as a newcomer's with another model: the others may go on without it."""
BAD_ARGUMENTS = frozenset({"ValueError", "TypeError"})
CALLS = re.compile(r'^  File ".*[/\\]multiworld[/\\]training[/\\]job\.py", line \d+, in (\w+)$', re.MULTILINE)
OPTIONS = re.compile(r'^  File ".*[/\\]multiworld[/\\]training[/\\].*\.py", line \d+, in __post_init__$')
"""Where ``Checkpoint``, ``Health`` and other options refuse what they were made with."""
WITH_ARGUMENTS = frozenset({"join", "replicate", "pipeline", "optimizer", "track", "loader"})
"""Functions of ``training.job`` that refuse bad arguments, before the first step."""


class Finality(enum.Enum):
    """Who meets an error again after a start."""

    NONE = "none"  # a start may help
    WORKER = "worker"
    JOB = "job"


def finality(traceback: str) -> Finality:
    """Return who would meet this error again: nobody as far as is known, this worker, or the whole job."""
    line = exception_line(traceback)
    found = RAISED.match(line) if line else None
    if found is None:
        return Finality.NONE
    name = found[1]
    if name in OF_ALL:
        return Finality.JOB
    is_refused = name in BAD_ARGUMENTS and (
        not WITH_ARGUMENTS.isdisjoint(CALLS.findall(traceback)) or _is_of_options(traceback)
    )
    return Finality.WORKER if name in OF_ONE or is_refused else Finality.NONE


def _is_of_options(traceback: str) -> bool:
    frames = [line for line in traceback.splitlines() if line.startswith("  File ")]
    return bool(frames) and OPTIONS.match(frames[-1]) is not None

"""``multiworld run``: a job in the foreground, and the exit status that says how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .. import run as launcher
from ..elastic.launch.parser import RUN
from .job_end import told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job: 0 if all went well, the first failed worker's status, 2 for bad input, 128 + N for signal N, or 1."""
    return told(RUN, partial(launcher.main, in_place=True), arguments)

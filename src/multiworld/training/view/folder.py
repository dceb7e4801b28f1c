"""Reads the record of a run: the files of all its members in one folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import TrainingError
from ..events import TrainingEvent
from ..settings import FOLDER
from .lines import merged, read_lines
from .recorder import SUFFIX


class NoRecordError(TrainingError):
    """A folder has no record of a training. Fields: ``folder``, ``reason``."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.reason}. Give the folder of training.join(..., record=FOLDER), "
            f"or the launcher's --log-dir, whose runs have theirs in RUN/{FOLDER}"
        )


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The events of all members in the order of time. ``num_cut``: files whose last line a kill has cut off."""

    folder: str
    events: tuple[TrainingEvent, ...]
    num_files: int
    num_damaged: int = 0
    num_cut: int = 0


def read_record(folder: str | os.PathLike[str]) -> RunRecord:
    """Return the record in a folder, or in the newest run below a launcher's log folder. Raises NoRecordError."""
    given = Path(folder)
    try:
        where = _record_below(given)
        read = [read_lines(path.read_bytes()) for path in sorted(where.glob(f"*{SUFFIX}"))]
    except OSError as error:
        raise NoRecordError(str(given), f"it cannot be read: {error.strerror or error}") from error
    if not read:
        raise NoRecordError(str(given), f"there is no file *{SUFFIX} in it")
    events = tuple(merged(each.events for each in read))
    if not events:
        raise NoRecordError(str(where), "its files have no event that this release knows")
    return RunRecord(
        folder=str(where),
        events=events,
        num_files=len(read),
        num_damaged=sum(each.num_damaged for each in read),
        num_cut=sum(each.is_cut for each in read),
    )


def _record_below(folder: Path) -> Path:
    if not folder.is_dir():
        raise NoRecordError(str(folder), "there is no such folder")
    if any(folder.glob(f"*{SUFFIX}")):
        return folder
    below = [each.parent for each in (*folder.glob(f"{FOLDER}/*{SUFFIX}"), *folder.glob(f"*/{FOLDER}/*{SUFFIX}"))]
    return max(below, key=lambda each: each.stat().st_mtime, default=folder)

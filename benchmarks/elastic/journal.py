"""What the workers of a job did, and when: they append lines to one file, which the benchmark reads while they do.

A file and not their output: it tells of workers whose launcher is dead, and no launcher stands between.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Formation", "Journal", "JournalWriter"]

POLL_S = 0.003  # entries carry their own times, so that this delays the next fault only


class JournalWriter:
    """A worker's end."""

    def __init__(self, path: str, **always: Any) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._always = always

    def write(self, event: str, **fields: Any) -> None:
        at = time.monotonic_ns() / 1e9  # one clock for all processes of a machine
        line = json.dumps({"event": event, "at": at, "pid": os.getpid(), **self._always, **fields})
        os.write(self._fd, line.encode() + b"\n")


@dataclass(frozen=True)
class Entry:
    """One line. ``at`` is CLOCK_MONOTONIC in seconds."""

    event: str
    at: float
    pid: int
    fields: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]


class Formation:
    """Workers that have reduced together: one generation of their world, known by a number that its rank 0 drew."""

    def __init__(self, first: Entry) -> None:
        self.number = int(first["formation"])
        self.world_size = int(first["world_size"])
        self.first_steps: dict[int, Entry] = {}
        self.began = self.last = first.at
        self.num_steps = 0

    def add(self, entry: Entry) -> None:
        self.first_steps.setdefault(int(entry["rank"]), entry)
        self.last = max(self.last, entry.at)
        self.num_steps += 1

    @property
    def is_complete(self) -> bool:
        return len(self.first_steps) == self.world_size

    @property
    def complete_at(self) -> float:
        """When the last rank had the result of its first all_reduce."""
        return max(entry.at for entry in self.first_steps.values())

    @property
    def pids(self) -> dict[int, int]:
        return {rank: entry.pid for rank, entry in self.first_steps.items()}

    def different(self, field: str) -> set[Any]:
        """Return the values that the ranks have of what should be equal on all."""
        return {entry.fields.get(field) for entry in self.first_steps.values()}


class Journal:
    """The reader's end."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._partial = b""
        self.entries: list[Entry] = []
        self.formations: dict[int, Formation] = {}
        self.last_work: dict[int, float] = {}  # by pid: when it began, or its last step

    def close(self) -> None:
        self._file.close()

    def read(self) -> None:
        """Take in what has been written until now."""
        *lines, self._partial = (self._partial + self._file.read()).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            entry = Entry(fields.pop("event"), fields.pop("at"), fields.pop("pid"), fields)
            self.entries.append(entry)
            if entry.event in ("begun", "step"):
                self.last_work[entry.pid] = entry.at
            if entry.event == "step":
                self.formations.setdefault(int(entry["formation"]), Formation(entry)).add(entry)

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Read until the condition holds; returns whether it did in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.read()
            if condition():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)

    def complete(self, world_size: int, after: float) -> Formation | None:
        """Return the last formation of that size whose first step came after a moment and in which all take part."""
        found = [
            each
            for each in self.formations.values()
            if each.world_size == world_size and each.began > after and each.is_complete
        ]
        return found[-1] if found else None

    def overlaps(self) -> list[tuple[Formation, Formation]]:
        """Return the pairs of formations that reduced at the same time under one name: there must be none."""
        ordered = sorted(self.formations.values(), key=lambda each: each.began)
        return [
            (one, other)
            for index, one in enumerate(ordered)
            for other in ordered[index + 1 :]
            if one.last > other.began and not set(one.pids.values()) & set(other.pids.values())
        ]

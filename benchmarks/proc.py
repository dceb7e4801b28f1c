"""Reads about processes what the kernel tells: descendants, processor time, memory, descriptors, threads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "command_of",
    "cpu_s",
    "descendants",
    "exists",
    "num_descriptors",
    "num_threads",
    "private_bytes",
    "rss_bytes",
]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, theirs, and so on, without those that have ended."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        new = children.get(waiting.pop(), [])
        found += new
        waiting += new
    return sorted(found)


def exists(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def command_of(pid: int) -> str:
    """Return its command line, or what it calls itself; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except GONE:
        return ""


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that these have used, in user mode and in the kernel."""
    stats = [fields for fields in map(_stat, pids) if fields]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / TICKS_PER_S


def rss_bytes(pids: Iterable[int]) -> int:
    return sum(int(_read(f"/proc/{pid}/statm", "0 0").split()[1]) for pid in pids) * PAGE_BYTES


def private_bytes(pid: int) -> int:
    """Return the memory that no other process shares with it."""
    lines = _read(f"/proc/{pid}/smaps_rollup", "").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def num_descriptors(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/fd"))
        except GONE:
            continue
    return total


def num_threads(pids: Iterable[int]) -> int:
    return sum(int(fields[17]) for fields in map(_stat, pids) if fields)


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, of which the first is the state; none if it is gone."""
    return _read(f"/proc/{pid}/stat", "").rpartition(")")[2].split()


def _read(path: str, default: str) -> str:
    try:
        return Path(path).read_text()
    except GONE:
        return default

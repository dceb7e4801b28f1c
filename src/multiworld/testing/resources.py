"""What a process holds: threads, descriptors, children and memory; and the check that a test gave all of it back."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from ..errors import MultiworldError
from .deadlines import wait_until

__all__ = ["LeakError", "Resources", "check_returned", "measure"]


@dataclass(frozen=True)
class Resources:
    """What this process held at one moment. ``threads`` counts the kernel's, so those of C++ libraries too."""

    threads: int
    thread_names: tuple[str, ...]
    descriptors: tuple[str, ...]
    children: tuple[int, ...]
    resident_bytes: int

    @property
    def num_descriptors(self) -> int:
        return len(self.descriptors)


class LeakError(MultiworldError, AssertionError):
    """Something was not given back; ``details`` names it."""

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self.details = details

    def __str__(self) -> str:
        return self.details


def measure() -> Resources:
    """Look at what this process holds now (Linux: from ``/proc/self``)."""
    return Resources(
        threads=len(os.listdir("/proc/self/task")),
        thread_names=tuple(sorted(thread.name for thread in threading.enumerate())),
        descriptors=tuple(sorted(_descriptors())),
        children=tuple(sorted(_children())),
        resident_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    )


def check_returned(before: Resources, *, timeout_s: float = 5.0) -> Resources:
    """Raise ``LeakError`` unless threads, descriptors and children are back to ``before`` within the scaled time.

    Gone within a moment is enough: some threads end just after whoever asked them to. Memory is not compared, but
    returned with the rest, for the caller to judge.
    """
    wait_until(lambda: not _compare(before, measure()), timeout_s)
    after = measure()
    if differences := _compare(before, after):
        raise LeakError("not given back: " + "; ".join(differences))
    return after


def _compare(before: Resources, after: Resources) -> list[str]:
    differences = []
    if after.threads > before.threads:
        names = _without(after.thread_names, before.thread_names)
        differences.append(f"threads {before.threads} -> {after.threads} (new Python threads: {names})")
    if after.num_descriptors > before.num_descriptors:
        extra = _without(after.descriptors, before.descriptors)
        differences.append(f"descriptors {before.num_descriptors} -> {after.num_descriptors} (new: {extra})")
    if extra_children := sorted(set(after.children) - set(before.children)):
        differences.append(f"children {extra_children}")
    return differences


def _without(after: tuple[str, ...], before: tuple[str, ...]) -> list[str]:
    left = list(after)
    for name in before:
        if name in left:
            left.remove(name)
    return left


def _descriptors() -> list[str]:
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return targets


def _children() -> list[int]:
    children: list[int] = []
    for task in os.listdir("/proc/self/task"):
        try:
            children += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
        except FileNotFoundError:  # the thread ended meanwhile
            continue
    return children

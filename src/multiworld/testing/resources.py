"""What a process holds: threads, descriptors, children and memory; and the check that a test gave all of it back."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
from dataclasses import dataclass

from ..errors import MultiworldError
from ..process.facts import count_threads, open_files, rss_bytes
from ..world.processes.procfs import child_pids, text_of
from .deadlines import Deadline, wait_until

SHARED_MEMORY = ("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero")


@dataclass(frozen=True)
class Resources:
    """What this process held at one moment. ``threads`` counts the kernel's, so those of C++ libraries too."""

    threads: int
    thread_names: tuple[str, ...]
    descriptors: tuple[str, ...]
    children: tuple[int, ...]
    shared_memory: tuple[str, ...]
    """The names of what is mapped of memory that other processes may map too."""
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
        threads=count_threads(),
        thread_names=tuple(sorted(thread.name for thread in threading.enumerate())),
        descriptors=tuple(sorted(open_files())),
        children=tuple(sorted(child_pids())),
        shared_memory=tuple(sorted(_shared_memory())),
        resident_bytes=rss_bytes() or 0,
    )


def trim() -> None:
    """Give the system back what is free, so that ``resident_bytes`` shows what is in use (with glibc; else nothing)."""
    gc.collect()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


def check_returned(before: Resources, *, timeout_s: float = 5.0) -> Resources:
    """Raise ``LeakError`` unless threads, descriptors, children and shared memory are back to ``before`` within the
    scaled time.

    Gone within a moment is enough: some threads end just after whoever asked them to. Memory is not compared, but
    returned with the rest, for the caller to judge.
    """
    wait_until(lambda: not _compare(before, measure()), timeout_s)
    return _check(before, measure())


async def check_returned_async(before: Resources, *, timeout_s: float = 5.0) -> Resources:
    """As ``check_returned``, while the event loop goes on."""
    deadline = Deadline(timeout_s)
    while _compare(before, measure()) and not deadline.expired:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0.01)
    return _check(before, measure())


def _check(before: Resources, after: Resources) -> Resources:
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
    if extra_memory := _without(after.shared_memory, before.shared_memory):
        differences.append(f"shared memory {extra_memory}")
    return differences


def _without(after: tuple[str, ...], before: tuple[str, ...]) -> list[str]:
    left = list(after)
    for name in before:
        if name in left:
            left.remove(name)
    return left


def _shared_memory() -> list[str]:
    names = []
    for line in text_of("/proc/self/maps").splitlines():
        _, access, _, _, _, *name = line.split(maxsplit=5)
        if access.endswith("s") and name and name[0].startswith(SHARED_MEMORY):
            names.append(name[0])
    return names

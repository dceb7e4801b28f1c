"""Measure a member's own time in a step by part, until it hands its gradients over.

The engine says where the thread goes: into the loader, to the program, into a backward, to what it waits for. The
time between two calls belongs to the part that was entered last, so parts never overlap, and what is not told is no
part's. On a GPU the thread runs ahead of the device; ``CudaStepTimer`` records an event at each change and reads them
when the step is over, without a synchronisation of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final, Protocol

import torch

DATA: Final = "data"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
WAIT: Final = "wait"
IDLE: Final = ""
"""Time that is nobody's: what the program does between two steps."""


class StepTimer:
    """Of one member, on its training thread. ``enter`` costs well under a microsecond.

    A hook of autograd may call ``enter`` from a thread of autograd, while the training thread waits in ``backward``:
    the two never run at once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._part, self._since = IDLE, clock()
        self._seconds: dict[str, float] = {}

    @property
    def part(self) -> str:
        return self._part

    def enter(self, part: str) -> None:
        """From now on the time is of this part."""
        now = self._clock()
        if self._part:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._since
        self._part, self._since = part, now

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Go back to the part before at the end."""
        before = self._part
        self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def taken(self) -> dict[str, float]:
        """Return the seconds by part since the last call, of the present part too, and begin anew with zero."""
        self.enter(self._part)
        taken, self._seconds = self._seconds, {}
        return taken


class _Mark(Protocol):
    """What ``torch.cuda.Event(enable_timing=True)`` offers."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end: _Mark) -> float: ...


def _cuda_mark() -> _Mark:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark: _Mark = event
    return mark


class CudaStepTimer(StepTimer):
    """Times kernels where they run. The data part is the thread's own: while a loader is slow, the device is idle.

    ``taken`` gives the parts of the last step whose events have all come by; those of a step that the device has not
    finished are given by a later call. So it never waits for the device.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, make_mark: Callable[[], _Mark] = _cuda_mark
    ) -> None:
        super().__init__(clock)
        self._make_mark = make_mark
        self._marks: list[tuple[str, _Mark]] = []  # a part, and where it begins on the device
        self._steps: list[tuple[dict[str, float], list[tuple[str, _Mark]]]] = []  # not finished by the device

    def enter(self, part: str) -> None:
        super().enter(part)
        mark = self._make_mark()
        mark.record()
        self._marks.append((part, mark))

    def taken(self) -> dict[str, float]:
        on_thread = super().taken()
        marks, self._marks = self._marks, self._marks[-1:]
        self._steps.append((on_thread, marks))
        seconds: dict[str, float] = {}
        while self._steps and all(mark.query() for _, mark in self._steps[0][1]):
            seconds = _on_device(*self._steps.pop(0)) or seconds
        return seconds


def _on_device(on_thread: Mapping[str, float], marks: Sequence[tuple[str, _Mark]]) -> dict[str, float]:
    seconds = {part: on_thread[part] for part in (DATA, WAIT) if part in on_thread}
    for (part, begin), (_, end) in pairwise(marks):
        if part not in (DATA, WAIT, IDLE):
            seconds[part] = seconds.get(part, 0.0) + begin.elapsed_time(end) / 1000
    return seconds


def step_timer(device: torch.device) -> StepTimer:
    """Return the timer for a model on this device."""
    return CudaStepTimer() if device.type == "cuda" else StepTimer()

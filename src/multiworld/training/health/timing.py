"""Measure a member's own time in a step by part, until it hands its gradients over.

The engine says where the thread goes: into the loader, to the program, into a backward, to what it waits for. The
time between two calls belongs to the part that was entered last, so parts never overlap, and what is not told is no
part's. What the thread waited for a processor that others had is taken out of the part, and is one of its own, ``cpu
wait``: on a shared host it is longer than the work, and says nothing of this member. On a GPU the thread runs ahead of
the device; ``CudaStepTimer`` records an event at each change and reads them when the step is over, without a
synchronisation of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final, Protocol

import torch

from .run_queue import RunQueue

DATA: Final = "data"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
WAIT: Final = "wait"
CPU_WAIT: Final = "cpu wait"
"""What the thread waited for a processor while it was in one of the parts above, without ``wait``."""
IDLE: Final = ""
"""Time that is nobody's: what the program does between two steps."""


class _Waited(Protocol):
    """What ``RunQueue`` offers."""

    def __call__(self) -> float: ...

    def close(self) -> None: ...


class StepTimer:
    """Of one member, on its training thread. ``enter`` costs a microsecond, and what ``waited_s`` costs.

    ``waited_s``: how long the thread has waited for a processor so far, see ``RunQueue``.

    A hook of autograd may call ``enter`` from a thread of autograd, while the training thread waits in ``backward``:
    the two never run at once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, waited_s: _Waited | None = None) -> None:
        self._clock, self._waited_s = clock, waited_s
        self._part, self._since = IDLE, clock()
        self._queued_since = 0.0 if waited_s is None else waited_s()
        self._seconds: dict[str, float] = {}

    @property
    def part(self) -> str:
        return self._part

    def enter(self, part: str) -> None:
        """From now on the time is of this part."""
        now = self._clock()
        queued = 0.0 if self._waited_s is None else self._waited_s()
        if self._part:
            took = now - self._since
            if self._part != WAIT and queued > self._queued_since:
                waited = min(queued - self._queued_since, took)
                self._seconds[CPU_WAIT] = self._seconds.get(CPU_WAIT, 0.0) + waited
                took -= waited
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + took
        self._part, self._since, self._queued_since = part, now, queued

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

    def close(self) -> None:
        """Idempotent."""
        if self._waited_s is not None:
            self._waited_s.close()


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
    """Return the timer for a model on this device, of the calling thread."""
    return CudaStepTimer() if device.type == "cuda" else StepTimer(waited_s=RunQueue())

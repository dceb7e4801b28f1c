"""Start an agent on each host of a hostfile, over ssh or what stands for it, and see all of them end."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Lock
from types import FrameType
from typing import TextIO

from ...process.interruption import ENDING, SIGNALLED, taken
from ...process.logs.outlet import Outlet
from ...process.orphans import Reaping
from ...world.processes.procfs import child_pids
from .announcement import find_coordinator
from .course import Act, Course
from .far_end import FarEnd
from .far_order import BEAT_S, END
from .hostfile_job import HostfileJob

READER_S = 3600.0  # a console that takes nothing for so long loses lines


def run_agents(job: HostfileJob, tell: Callable[[str], object]) -> int:
    """Run the job to its end on all hosts; returns its exit status. Signals are taken on the main thread only.

    ``tell`` is given what this end alone can say, a line at a time. Raises ValueError if there is no such command as
    ssh.
    """
    with ExitStack() as stack:
        console = _Console()
        stack.callback(console.close)
        agents = _Agents(job, tell, console)
        stack.callback(agents.cut)
        stack.enter_context(taken(ENDING, agents.note))
        agents.start()
        return agents.wait()


class _Console:
    """The standard streams, for lines of many threads. Lines that nobody reads any more are dropped."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._outlets: dict[int, Outlet] = {}
        streams: tuple[tuple[int, TextIO | None], ...] = ((1, sys.stdout), (2, sys.stderr))
        for descriptor, stream in streams:
            if stream is not None:
                with suppress(OSError, ValueError):  # none that has a descriptor
                    self._outlets[descriptor] = Outlet(stream)

    def write(self, descriptor: int, text: bytes) -> None:
        with self._lock:
            outlet = self._outlets.get(descriptor)
            if outlet is None or not text:
                return
            try:
                outlet.write(text, READER_S)
            except OSError:
                self._outlets.pop(descriptor).close()

    def close(self) -> None:
        """Not while a thread waits for the console: what it has for that is lost with this process."""
        if self._lock.acquire(timeout=0.0):
            while self._outlets:
                self._outlets.popitem()[1].close()
            self._lock.release()


class _Agents:
    """The far ends, and what happens to them, in order, on one thread."""

    def __init__(self, job: HostfileJob, tell: Callable[[str], object], console: _Console) -> None:
        self._job, self._tell, self._console = job, tell, console
        self._course = Course(job.labels, end_s=job.end_s)
        self._far_ends: list[FarEnd] = []
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._reaping = Reaping(child_pids())
        self._beat_at = 0.0

    def note(self, signum: int, frame: FrameType | None) -> None:
        self._news.put(lambda: self._course.signalled(signum, time.monotonic()))

    def start(self) -> None:
        for index, label in enumerate(self._job.labels):
            self._far_ends.append(self._start(index, label))

    def wait(self) -> int:
        while not self._course.is_over:
            try:
                self._news.get(timeout=self._remaining_s())()
            except queue.Empty:
                self._reaping.look()
            now = time.monotonic()
            self._course.poll(now)
            self._carry_out()
            if now >= self._beat_at:
                self._beat_at = now + BEAT_S
                for index in self._ready():
                    self._far_ends[index].beat()
        return self._course.status

    def cut(self) -> None:
        """End what is left, at once."""
        for index in self._course.running:
            if index < len(self._far_ends):
                self._far_ends[index].cut()

    def _start(self, index: int, label: str) -> FarEnd:
        course, news = self._course, self._news

        def line(text: str) -> None:
            if find_coordinator(text) is not None:
                news.put(lambda: course.announced(time.monotonic()))

        def ended(status: int) -> None:
            told = status if status >= 0 else SIGNALLED - status
            news.put(lambda: course.ended(index, told, time.monotonic(), self._far_ends[index].last_words))

        return FarEnd(
            label,
            self._job.command(index),
            self._job.order(index),
            self._console.write,
            on_ready=lambda: news.put(lambda: course.ready(index, time.monotonic())),
            on_line=line,
            on_ended=ended,
        )

    def _ready(self) -> list[int]:
        return [index for index in self._course.running if self._course.is_ready(index)]

    def _remaining_s(self) -> float:
        due = [self._beat_at, *([] if self._course.due_at is None else [self._course.due_at])]
        return min(self._reaping.every_s, max(0.0, min(due) - time.monotonic()))

    def _carry_out(self) -> None:
        course = self._course
        while course.said:
            self._tell(course.said.pop(0))
        while course.acts:
            act = course.acts.pop(0)
            if act is Act.CUT:
                self.cut()
                continue
            for index in course.running:
                if course.is_ready(index):
                    self._far_ends[index].tell(END)
                else:
                    self._far_ends[index].cut()

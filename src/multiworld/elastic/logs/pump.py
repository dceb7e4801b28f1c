"""Read the output of this host's workers, on a thread of its own, so that a flood of it never delays a heartbeat."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TextIO

from ...process.logs.console import Console, open_consoles
from ...process.logs.output import ProcessOutput
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread
from ..job.assignment import Assignment
from ..job.options import LogOptions
from .places import Places, WorkerPlaces
from .prefix import prefix

logger = logging.getLogger(__name__)

STOP_S = 1.0  # for a thread that should answer at once


class WorkerStreams(ProcessOutput):
    """The two pipes of one worker process.

    ``drained`` completes, on the pump's thread, once both pipes were read to their end.
    """

    def __init__(self, pump: LogPump, assignment: Assignment, places: WorkerPlaces) -> None:
        self.error_file = places.error_file
        """The worker's ``TORCHELASTIC_ERROR_FILE``; empty where no files are wanted."""
        self.variables = places.variables
        """What the ``LogsSpecs`` ask to be set in the worker's environment."""
        self.log_dir = os.path.dirname(places.error_file) or None
        self.drained: Operation[None] = Operation()
        self._pump = pump
        super().__init__(
            pump.thread,
            (pump.out, pump.err),
            (places.stdout, places.stderr),
            pump.prefix(assignment),
            exact=pump.is_exact(assignment),
            followers=pump.followers,
            on_end=self._ended,
        )

    def reassigned(self, assignment: Assignment) -> None:
        """The worker has another rank or generation from now on, so its lines get another prefix. From any thread."""
        prefix, exact = self._pump.prefix(assignment), self._pump.is_exact(assignment)
        self._pump.thread.call_soon(partial(self.relabel, prefix, exact=exact))

    def note(self, text: bytes) -> None:
        """As ``take_note``, from any thread."""
        self._pump.thread.call_soon(partial(self.take_note, text))

    def close_after(self, grace_s: float) -> None:
        """Give the pipes up after that time: a grandchild may hold them open for ever. What is in them is kept."""
        self.started()
        self._pump.thread.call_later(grace_s, self.give_up)

    def _ended(self) -> None:
        self._pump.forget(self)
        self.drained.succeed(None)


class LogPump:
    """The output of all workers of one host, and where it goes.

    ``console_out`` and ``console_err`` stand for ``sys.stdout`` and ``sys.stderr``, as they are now. Raises ValueError
    for log options that mean nothing, OSError if the log folder cannot be made.
    """

    def __init__(
        self,
        options: LogOptions,
        *,
        role: str,
        run_id: str,
        num_workers: int,
        console_out: TextIO | None = None,
        console_err: TextIO | None = None,
    ) -> None:
        self._template, self._role, self._hostname = options.prefix_template, role, socket.gethostname()
        self._places = Places(options, role=role, run_id=run_id, num_workers=num_workers)
        self.thread = ProgressThread("multiworld-logs")
        self.out, self.err = open_consoles(self.thread, console_out or sys.stdout, console_err or sys.stderr, Console)
        self.followers: list[Callable[[bytes], None]] = []
        self._streams: set[WorkerStreams] = set()
        self._closed = False

    @property
    def run_dir(self) -> str | None:
        """The folder of this run, from the first start on; None where no files are wanted."""
        return self._places.run_dir

    def open(self, assignment: Assignment) -> WorkerStreams:
        """Make the pipes and files of a worker that is about to be started. Raises OSError."""
        places = self._places.open(assignment)
        try:
            streams = WorkerStreams(self, assignment, places)
        except OSError:
            self.take_back(assignment)
            raise
        self._streams.add(streams)
        return streams

    def take_back(self, assignment: Assignment) -> None:
        """The worker was not started, and is tried again: that is no other attempt."""
        self._places.take_back(assignment.local_rank)

    def follow(self, follower: Callable[[bytes], None]) -> Callable[[], None]:
        """Call ``follower`` on the pump's thread with the lines of all workers from now on; return what ends that."""
        self.thread.call_soon(partial(self.followers.append, follower))
        return partial(self.thread.call_soon, partial(self._unfollow, follower))

    def close(self, *, timeout_s: float, keep: bool) -> None:
        """Read what is left, wait up to ``timeout_s`` for a slow console, and end the thread. Blocks; idempotent.

        ``keep``: leave the files although the user named no folder for them.
        """
        if self._closed:
            return
        self._closed = True
        for streams in list(self._streams):
            streams.started()
        if not self._on_thread(self._finish, timeout_s):
            logger.warning("the console took too long: the last output of workers is not shown")
        if self._on_thread(self._close_consoles, STOP_S):
            self.thread.stop()
        else:  # it hangs in a write, behind another writer on the same pipe; a daemon does not hold up the exit
            self.thread.call_soon(self.thread.stop)
        if not keep:
            self._places.discard_temporary()

    def discard_empty(self) -> None:
        """Remove the folders of this run in which nothing was written, after ``close``."""
        self._places.discard_empty()

    def prefix(self, assignment: Assignment) -> bytes:
        return prefix(assignment, role=self._role, template=self._template, hostname=self._hostname).encode()

    def is_exact(self, assignment: Assignment) -> bool:
        """Whether this worker's output is all there is, and goes through as it is."""
        return assignment.world_size == 1 and not self._template

    def forget(self, streams: WorkerStreams) -> None:
        self._streams.discard(streams)

    def _unfollow(self, follower: Callable[[bytes], None]) -> None:
        if follower in self.followers:
            self.followers.remove(follower)

    def _on_thread(self, step: Callable[[Callable[[], None]], None], timeout_s: float) -> bool:
        """Let the thread run ``step``, and return whether it said in time that it is done."""
        done = threading.Event()
        self.thread.call_soon(partial(step, done.set))
        return done.wait(timeout_s)

    def _finish(self, on_done: Callable[[], None]) -> None:
        for streams in list(self._streams):
            streams.give_up()
        self.out.when_empty(partial(self.err.when_empty, on_done))

    def _close_consoles(self, on_done: Callable[[], None]) -> None:
        self.out.close()
        self.err.close()
        on_done()

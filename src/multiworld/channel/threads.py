"""Threads that do what may block: tasks in order, and giving a process group back."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

IDLE_S = 5.0
_reapers: set[threading.Thread] = set()
_reapers_lock = threading.Lock()


class SerialThread:
    """Tasks are called one after the other, in the order in which they were given.

    The thread starts when there is one, and ends when none has come for a while. Ending it for good never blocks.
    """

    def __init__(self, name: str, *, idle_s: float = IDLE_S) -> None:
        self._name, self._idle_s = name, idle_s
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def put(self, task: Callable[[], object]) -> bool:
        """Give a task; False: it will not run, because the thread was stopped or none can be started."""
        with self._lock:
            if self._stopped:
                return False
            if self._thread is None:
                self._thread = start_daemon(self._run, self._name)
            if self._thread is None:
                return False
            self._queue.put(task)
        return True

    def stop(self) -> None:
        """Let the thread end after what was given. Idempotent, never blocks."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False if it has not."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while self._run_next():
            pass  # nothing is kept between the tasks: an idle thread must not hold a tensor

    def _run_next(self) -> bool:
        try:
            task = self._queue.get(timeout=self._idle_s)
        except queue.Empty:
            return not self._retire()
        if task is None:
            return False
        try:
            task()
        except Exception:  # a defect in one task must not end the thread that serves the others
            logger.exception("task of %s failed", self._name)
        return True

    def _retire(self) -> bool:
        """Let the thread end, unless a task has come in that very moment."""
        with self._lock:
            is_idle = self._queue.empty()
            if is_idle:
                self._thread = None  # the next task starts another
            return is_idle


def start_daemon(run: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a thread that nothing waits for at exit; None, and a word in the log, if none can be started."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the interpreter is ending, or the system has no thread left
        logger.warning("%s: no thread: %s", name, error)
        return None
    return thread


def start_reaper(reap: Callable[[], None], name: str) -> None:
    """Run ``reap`` on a thread of its own; here, if none starts any more, at exit or for want of threads.

    It is no daemon, and the exit handler waits for it: the interpreter must not end while a library gives back what it
    holds, because a thread that comes back from that into an interpreter that is gone aborts the process.
    """
    if not threading.main_thread().is_alive():
        reap()
        return
    with _reapers_lock:
        thread = threading.Thread(target=reap, name=name, daemon=False)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("%s: no thread: %s; what it does is done at once", name, error)
        else:
            _reapers.difference_update([reaper for reaper in _reapers if not reaper.is_alive()])
            _reapers.add(thread)
            return
    reap()


def forget_reapers() -> None:
    """In a forked child: they do not exist here, and one may have been starting."""
    global _reapers_lock
    _reapers_lock = threading.Lock()
    _reapers.clear()


def join_reapers(timeout_s: float) -> None:
    """Wait for the reapers, at exit: the interpreter does not wait for one that starts while it is ending already."""
    deadline = time.monotonic() + timeout_s
    with _reapers_lock:
        reapers = list(_reapers)
    for reaper in reapers:
        reaper.join(max(0.0, deadline - time.monotonic()))

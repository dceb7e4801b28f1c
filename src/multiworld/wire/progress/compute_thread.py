"""One thread for arithmetic that is too long for the progress thread. Started on first use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

from .operation import Operation


class _Task:
    __slots__ = ("operation", "withdrawn", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.withdrawn = False
        self.operation: Operation[None] = Operation()


class ComputeThread:
    """Runs work in the order in which it was given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._turn = threading.Lock()  # held while work runs
        self._running: _Task | None = None

    def run(self, work: Callable[[], None]) -> Operation[None]:
        """Queue work. Cancelling the operation takes it back, or waits until it has run if it is running."""
        task = _Task(work)
        task.operation.on_cancel = partial(self._withdraw, task)
        with self._lock:
            why_not = "the manager is closed" if self._stopped else self._start()
            if not why_not:
                self._queue.put(task)
                return task.operation
        task.operation.fail(RuntimeError(why_not))
        return task.operation

    def _start(self) -> str:
        """Start the thread, if there is none; return why that could not be done."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left; the next call tries again
                return f"no thread for arithmetic: {error}"
            self._thread = thread
        return ""

    def stop(self) -> None:
        """Finish what was given, then end the thread. Idempotent."""
        with self._lock:
            thread = self._thread
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            self._perform(task)
            del task  # it would keep its tensors alive until the next one comes

    def _perform(self, task: _Task) -> None:
        error: Exception | None = None
        with self._turn:
            self._running = task
            withdrawn = task.withdrawn
            if not withdrawn:
                try:
                    task.work()
                except Exception as raised:  # it belongs to the one who waits
                    error = raised
            self._running = None
        if error is not None:
            task.operation.fail(error)
        elif not withdrawn:  # else it is being cancelled
            task.operation.succeed(None)
        del error, task  # the error, which others keep, refers to this frame

    def _withdraw(self, task: _Task) -> None:
        task.withdrawn = True
        if self._running is task:
            with self._turn:  # afterwards it has run, and its memory is no longer touched
                return

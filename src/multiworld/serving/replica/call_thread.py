"""The thread on which a stage's longer work runs: one call after the other, the next of which may wait there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

Call = TypeVar("Call")
Outcome = TypeVar("Outcome")


class CallThread(Generic[Call, Outcome]):
    """``make`` makes a call, in inference mode, and raises nothing; ``made`` hears of it on the event loop.

    An executor of the standard library takes a third longer between two calls (decision 023): each has a future, a lock
    and a condition of its own there.
    """

    def __init__(self, make: Callable[[Call], Outcome], made: Callable[[Call, Outcome], None]) -> None:
        self._make, self._made = make, made
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._num_threads = torch.get_num_threads()
        self._worker: threading.Thread | None = None
        self._over = False

    def submit(self, call: Call) -> None:
        """Make it after those before it."""
        if self._worker is None:
            # A daemon: whoever ends this process does not wait for work that hangs.
            self._worker = threading.Thread(target=self._run, name="multiworld-stage", daemon=True)
            self._worker.start()
        self._calls.put(call)

    def close(self) -> None:
        """Make no more calls. The thread ends with the one that it makes, of which nobody hears."""
        self._over = True
        self._calls.put(None)

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # it counts for the thread that calls it
        with torch.inference_mode():
            while (call := self._calls.get()) is not None and not self._over:
                outcome = self._make(call)
                try:
                    self._loop.call_soon_threadsafe(self._hear, call, outcome)
                except RuntimeError:  # the loop was closed: nobody listens any more
                    return
                del call, outcome  # else what they hold would live until the next call

    def _hear(self, call: Call, outcome: Outcome) -> None:
        if not self._over:
            self._made(call, outcome)

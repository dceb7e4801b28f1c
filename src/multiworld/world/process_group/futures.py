"""Futures of a group, and the threads that complete them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...channel.threads import start_daemon
from ...wire.progress.waiting import run_in_thread

PATIENCE_S = 0.2
"""A call that takes longer may wait for a future that stands behind it, in a way that nobody can see."""


class Completer:
    """Completes futures, one after the other, because whatever was chained to them runs there.

    One thread at a time has the *turn* to do so. It gives the turn up where what it runs waits for another future of
    the group (``step_aside``), or takes ``PATIENCE_S`` while others wait; another thread then goes on. Without that
    each would wait for the other. Threads are started when they are needed.

    ``later(delay_s, call)`` makes a call on another thread.
    """

    def __init__(self, name: str, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._name, self._later = name, later
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._turn = 0  # the thread that has it; 0: nobody
        self._num_begun = 0
        self._num_idle = 0  # threads that wait for something to do, or are about to
        self._watched = 0  # the call for which a look was last arranged
        self._stopped = False

    def run(self, complete: Callable[[], None]) -> None:
        """Run it soon, in the order of the calls. Any thread, never blocks."""
        with self._changed:
            if not self._stopped and self._have_thread():
                self._queue.append(complete)
                self._changed.notify()
                self._watch()
                return
        run_in_thread(complete, self._name)

    def step_aside(self) -> None:
        """The calling thread is about to wait for a future: if it has the turn, it gives that up."""
        with self._changed:
            if self._turn == threading.get_ident():
                self._pass_on()

    def stop(self) -> None:
        """End the threads after what they were given; does not wait for that. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _have_thread(self) -> bool:
        """Whether a thread will come for what is put into the queue; starts one if none would."""
        if self._turn or self._num_idle:
            return True
        if start_daemon(self._run, self._name) is None:
            return False
        self._num_idle += 1
        return True

    def _pass_on(self) -> None:
        self._turn = 0
        if self._queue and self._have_thread():
            self._changed.notify()

    def _watch(self) -> None:
        """Look later whether the call that is made now is still the same while others wait."""
        if self._turn and self._watched != self._num_begun:
            self._watched = self._num_begun
            self._later(PATIENCE_S, partial(self._look, self._num_begun))

    def _look(self, number: int) -> None:
        with self._changed:
            if self._turn and self._num_begun == number and self._queue:
                self._pass_on()

    def _run(self) -> None:
        with self._changed:
            self._num_idle -= 1
        while (complete := self._next()) is not None:
            complete()
            del complete  # it would keep its tensors alive until the next one comes

    def _next(self) -> Callable[[], None] | None:
        """Wait for the turn and for something to do; None: this thread is not needed any more."""
        here = threading.get_ident()
        with self._changed:
            if self._turn == here:
                self._turn = 0
            while self._turn or not self._queue:
                if self._num_idle or (self._stopped and not self._queue):
                    return None
                self._num_idle += 1
                try:
                    self._changed.wait()
                finally:
                    self._num_idle -= 1
            self._turn = here
            self._num_begun += 1
            complete = self._queue.popleft()
            if self._queue:
                self._watch()
            return complete


class GroupFuture(torch.futures.Future[Any]):
    """A future of a group, which may be waited for in what was chained to another one."""

    completer: Completer

    def wait(self) -> Any:
        if not self.done():
            self.completer.step_aside()
        return super().wait()

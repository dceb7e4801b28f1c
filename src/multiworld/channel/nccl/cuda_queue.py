"""The two threads that serve the communicators of one device for all worlds: one launches, one looks for the end.

Kernels of several communicators that several threads launch at once may start in different orders on different
devices, and wait for each other for ever; so everything on one device is launched by one thread. Nothing tells when the
work on a device is done, so it has to be asked again and again; one thread does that for all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from ...wire.backoff import BackOff
from ..threads import SerialThread, start_daemon

logger = logging.getLogger(__name__)

MIN_SLEEP_S = 20e-6
MAX_SLEEP_S = 1e-3

Check = Callable[[], bool]
"""Look whether something is over, tell that if so, and return True: it is not asked again."""


class Poller:
    """Asks what is under way whether it is over. Its thread starts with the first question, and sleeps without one."""

    def __init__(self, name: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._name, self._sleep = name, sleep
        self._changed = threading.Condition()
        self._checks: list[Check] = []
        self._num_watched = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, check: Check) -> None:
        """Ask until it says True; here and now, where no thread can be started. Dropped once stopped."""
        with self._changed:
            if self._stopped:
                return
            if self._thread is None:
                self._thread = start_daemon(self._run, self._name)
            if self._thread is not None:
                self._checks.append(check)
                self._num_watched += 1
                self._changed.notify()
                return
        while not self._stopped and not _is_over(check):
            self._sleep(MAX_SLEEP_S)

    def stop(self) -> None:
        """Ask nothing any more, and end the thread. Idempotent, never blocks."""
        with self._changed:
            self._stopped = True
            self._checks.clear()
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False if it has not."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        back_off, num_seen = BackOff(MIN_SLEEP_S, MAX_SLEEP_S), 0
        while self._wait_for_checks():
            any_over = self._ask_all()
            if any_over or num_seen != self._num_watched:  # more may follow soon
                num_seen = self._num_watched
                back_off.reset()
            delay_s = back_off.next_s()
            if not any_over:
                self._sleep(delay_s)

    def _wait_for_checks(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self._checks))
            return not self._stopped

    def _ask_all(self) -> bool:
        """Ask each once; in a frame of its own, so that what is over is not kept alive by the sleeping thread."""
        with self._changed:
            checks = list(self._checks)
        over = [check for check in checks if _is_over(check)]
        if over:
            with self._changed:
                for check in over:
                    if check in self._checks:  # else it was stopped meanwhile
                        self._checks.remove(check)
        return bool(over)


def _is_over(check: Check) -> bool:
    try:
        return check()
    except Exception:  # a defect in one must not end the thread that serves all worlds
        logger.exception("a look at what is under way on the device failed; it is not repeated")
        return True


class CudaQueue:
    """The threads of one device."""

    def __init__(self, name: str) -> None:
        self._launcher = SerialThread(f"{name}-launch")
        self._poller = Poller(f"{name}-poll")

    def launch(self, task: Callable[[], object]) -> bool:
        """Run it on the launching thread, in the order of the calls. False once stopped."""
        return self._launcher.put(task)

    def watch(self, check: Check) -> None:
        """Ask on the polling thread until it says True."""
        self._poller.watch(check)

    def stop(self) -> None:
        """End the threads. Idempotent, never blocks."""
        self._launcher.stop()
        self._poller.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait until the threads have ended; False if they have not."""
        return self._launcher.join(timeout_s) and self._poller.join(timeout_s)


_lock = threading.Lock()
_queues: dict[torch.device, tuple[CudaQueue, int]] = {}  # the queue, and how many channels use it


def acquire_queue(device: torch.device) -> CudaQueue:
    """Return the queue of a device: up to two threads, until all have released it."""
    with _lock:
        queue, num_users = _queues.get(device, (None, 0))
        if queue is None:
            queue = CudaQueue(f"nccl-{device}")
        _queues[device] = queue, num_users + 1
    return queue


def release_queue(device: torch.device) -> None:
    """Give a queue back, when nothing of the caller's is under way any more. Never blocks."""
    with _lock:
        queue, num_users = _queues.pop(device)
        if num_users > 1:
            _queues[device] = queue, num_users - 1
            return
    queue.stop()

"""The far end of a command on several hosts: start this host's launcher, and end it when the near end is gone.

It reads one line of JSON from its standard input (see ``hosts.far_order``), and takes the end of that input for the
loss of the near end: this holds for one that was killed, and for a connection that is lost alike.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from ..process.interruption import ENDING, SIGNALLED, end_on_signals, held, takeable
from ..process.spawn.forking import die_with_parent
from ..wire.messages import from_json
from .hosts.far_order import END, FarOrder

BAD_INPUT = 2
PIECE = 65536
AT_ONCE_S = 10.0  # for a launcher to end in after the second SIGTERM


def main() -> int:
    """Run the launcher to its end, and return its exit status."""
    end_on_signals("multiworld")
    near_end = _NearEnd(0)
    order = near_end.read_order()
    if order is None:
        return BAD_INPUT  # nobody is there to be told
    end_on_signals(order.command)
    try:
        os.chdir(order.directory)
    except OSError as error:
        return _refuse(order, f"its directory {order.directory}: {error.strerror}")
    with held():
        launcher = subprocess.Popen(
            [sys.executable, "-m", order.module, *order.arguments],
            env={**os.environ, **order.variables},
            stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

        def end(signum: int, frame: FrameType | None) -> None:
            launcher.terminate()

        for signum in takeable(ENDING):
            signal.signal(signum, end)
    if order.ready:
        near_end.tell(order.ready)
    _Attendance(order, launcher, near_end).run()
    status = launcher.wait()
    return status if status >= 0 else SIGNALLED - status


class _NearEnd:
    """What comes over a descriptor, line by line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def read_order(self) -> FarOrder | None:
        """Wait for the first line; None if it does not come."""
        while True:
            lines = self.read_lines()
            if lines is None:
                return None
            if lines:
                self._rest = b"".join(line + b"\n" for line in lines[1:]) + self._rest
                return from_json(FarOrder, json.loads(lines[0]))

    def read_lines(self) -> list[bytes] | None:
        """Wait for something, and return the whole lines that have come; None at the end."""
        try:
            piece = os.read(self.descriptor, PIECE)
        except OSError:
            piece = b""
        if not piece:
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return lines

    def tell(self, line: str) -> None:
        try:
            os.write(1, f"{line}\n".encode())
        except OSError:  # it is gone, which the end of the input says too
            return


class _Attendance:
    """Waits until the launcher has ended; has it end when the near end says so, or is gone."""

    def __init__(self, order: FarOrder, launcher: subprocess.Popen[bytes], near_end: _NearEnd) -> None:
        self._order, self._launcher, self._near_end = order, launcher, near_end
        self._silent_at: float | None = None
        self._steps: list[tuple[float, Callable[[], None]]] = []
        """When what is done, if the launcher has not ended by then. Empty as long as it may go on."""
        self._hear()

    def run(self) -> None:
        watched = select.poll()
        pidfd = os.pidfd_open(self._launcher.pid)
        try:
            watched.register(pidfd, select.POLLIN)
            watched.register(self._near_end.descriptor, select.POLLIN)
            while True:
                ready = [descriptor for descriptor, _ in watched.poll(self._timeout_ms())]
                if pidfd in ready:
                    return
                if self._near_end.descriptor in ready:
                    lines = self._near_end.read_lines()
                    self._heard(lines)
                    if lines is None:
                        watched.unregister(self._near_end.descriptor)
                self._take_steps()
        finally:
            os.close(pidfd)

    def _timeout_ms(self) -> float | None:
        due = [at for at, _ in self._steps[:1]] + ([] if self._silent_at is None else [self._silent_at])
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    def _heard(self, lines: list[bytes] | None) -> None:
        if lines is None:
            self._lost()
            return
        self._hear()
        for _ in range(lines.count(END)):
            self._launcher.terminate()

    def _hear(self) -> None:
        if self._order.silent_s is not None and not self._steps:
            self._silent_at = time.monotonic() + self._order.silent_s

    def _take_steps(self) -> None:
        now = time.monotonic()
        if self._silent_at is not None and now >= self._silent_at:
            self._lost()
        while self._steps and now >= self._steps[0][0]:
            _, step = self._steps.pop(0)
            step()

    def _lost(self) -> None:
        """The near end is gone: have this host leave the job, or end it."""
        self._silent_at = None
        if self._steps:
            return
        now, end_s = time.monotonic(), self._order.end_s
        if self._order.leaves is not None and self._leave(self._order.leaves):
            self._steps = [(now + end_s, self._launcher.kill)]  # SIGTERM would end the job on the other hosts too
            return
        terminate = self._launcher.terminate
        at_once = now + end_s
        self._steps = [(now, terminate), (at_once, terminate), (at_once + AT_ONCE_S, self._launcher.kill)]

    def _leave(self, job: str) -> bool:
        from .leaving import leave  # what only few need

        return leave(job, host=self._order.host, pid=self._launcher.pid)


def _refuse(order: FarOrder, reason: str) -> int:
    sys.stderr.write(f"{order.command}: {order.host} cannot take part: {reason}\n")
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())

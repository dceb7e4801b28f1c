"""The far end of ``multiworld exec --hosts``: start this host's launcher, and end it when the near end is gone.

It reads one line of JSON from its standard input, and takes the end of that input for the wish to end the job: this
holds for Ctrl-C over there and for a connection that is lost alike.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from functools import partial
from types import FrameType

from ..process.interruption import ENDING, SIGNALLED, end_on_signals, held, takeable
from ..process.spawn.forking import die_with_parent
from ..wire.messages import from_json
from .hosts.shares import FarOrder

BAD_INPUT = 2
PIECE = 65536


def main() -> int:
    """Run the launcher to its end, and return its exit status."""
    end_on_signals("multiworld exec")
    order = _read_order(0)
    if order is None:
        return BAD_INPUT  # nobody is there to be told
    try:
        os.chdir(order.directory)
    except OSError as error:
        return _refuse(order, f"its directory {order.directory}: {error.strerror}")
    with held():
        launcher = subprocess.Popen(
            [sys.executable, "-m", "multiworld.cli.exec", *order.arguments],
            env={**os.environ, **order.variables},
            stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

        def end(signum: int, frame: FrameType | None) -> None:
            launcher.terminate()

        for signum in takeable(ENDING):
            signal.signal(signum, end)
    _await_end(launcher, 0)
    status = launcher.wait()
    return status if status >= 0 else SIGNALLED - status


def _read_order(descriptor: int) -> FarOrder | None:
    """Return the first line; None if it does not come."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, PIECE)
        if not piece:
            return None
        line += piece
    return from_json(FarOrder, json.loads(line))


def _await_end(launcher: subprocess.Popen[bytes], near_end: int) -> None:
    """Wait until the launcher has ended; ask it to when the near end is gone."""
    watched = select.poll()
    pidfd = os.pidfd_open(launcher.pid)
    try:
        watched.register(pidfd, select.POLLIN)
        watched.register(near_end, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in watched.poll()]
            if pidfd in ready:
                return
            if not _is_there(near_end):
                watched.unregister(near_end)
                launcher.terminate()
    finally:
        os.close(pidfd)


def _is_there(near_end: int) -> bool:
    try:
        return bool(os.read(near_end, PIECE))
    except OSError:
        return False


def _refuse(order: FarOrder, reason: str) -> int:
    sys.stderr.write(f"multiworld exec: {order.host} cannot take part: {reason}\n")
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())

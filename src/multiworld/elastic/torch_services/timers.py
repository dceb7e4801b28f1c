"""Countdown timers of workers, as ``torch.distributed.elastic.timer`` has them: who overruns one is named here."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from torch.distributed.elastic.timer.file_based_local_timer import FileTimerRequest, FileTimerServer

logger = logging.getLogger(__name__)

ENABLE_VARIABLE = "TORCHELASTIC_ENABLE_FILE_TIMER"
FILE_VARIABLE = "TORCHELASTIC_TIMER_FILE"
LOOK_S = 0.1  # as torchrun's agent
MARGIN_S = 0.2  # torch looks for timers that ran out before it reads that they were given back meanwhile


@dataclass(frozen=True)
class OverrunTimer:
    """A timer that ran out. ``pid`` is of the process that set it; ``signum``: what is to end that, 0: nothing.

    ``after_s``: for how long it was set, but for a tenth of a second.
    """

    pid: int
    scope: str
    after_s: float
    signum: int

    def __str__(self) -> str:
        return f"its timer {self.scope} ran out after about {self.after_s:.1f} s"


def watch_timers(
    variables: Mapping[str, str], run_id: str, on_overrun: Callable[[OverrunTimer], None]
) -> TimerWatch | None:
    """Watch the timers of this host's workers if the variables say so, as they do for torchrun.

    ``on_overrun`` is called on the watching thread, for each process once. Raises ValueError if the named pipe cannot
    be made.
    """
    if variables.get(ENABLE_VARIABLE) != "1":
        return None
    path = variables.get(FILE_VARIABLE) or _generated_path()
    claim = _claim(path)
    if claim is None or _is_read(path):  # two agents on one host, with the same variables
        if claim is not None:
            claim.close()
        taken, path, claim = path, _generated_path(), None
        logger.warning("%s=%s is in use by another agent: the timers of this one are at %s", FILE_VARIABLE, taken, path)
    try:
        return TimerWatch(path, run_id, on_overrun, claim)
    except BaseException:
        if claim is not None:
            claim.close()
        raise


class TimerWatch:
    """Torch's server of file timers, on its own thread, but for what it does in the end: it would end this process."""

    def __init__(
        self, path: str, run_id: str, on_overrun: Callable[[OverrunTimer], None], claim: socket.socket | None = None
    ) -> None:
        """``claim`` is closed at the end."""
        self.path, self._claim = path, claim
        if os.path.lexists(path) and not stat.S_ISFIFO(os.lstat(path).st_mode):  # it would be removed
            raise ValueError(f"{FILE_VARIABLE}={path}: that is no named pipe, and not replaced by one")
        try:
            self._server = _TellingServer(path, run_id, on_overrun)
        except OSError as error:
            raise ValueError(f"{FILE_VARIABLE}={path}: no named pipe can be made there: {error.strerror}") from None
        self._server.start()

    @property
    def variables(self) -> dict[str, str]:
        """What workers must be told."""
        return {FILE_VARIABLE: self.path}

    def alive_at_s(self) -> int:
        """Return when the watching thread was last known to be well: seconds since the epoch. From any thread."""
        return int(self._server.get_last_progress_time())

    def close(self) -> None:
        """End the thread, and remove the pipe. Idempotent."""
        fd = -1
        with suppress(OSError):  # unless somebody removed it
            fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)  # the thread waits in its open until somebody writes
        self._server.stop()
        if fd >= 0:
            os.close(fd)
        if self._claim is not None:
            self._claim.close()


class _TellingServer(FileTimerServer):
    def __init__(self, path: str, run_id: str, on_overrun: Callable[[OverrunTimer], None]) -> None:
        super().__init__(path, run_id, max_interval=LOOK_S, daemon=True)
        self._on_overrun = on_overrun
        self._set_at_s: dict[tuple[int, str], float] = {}

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        for request in timer_requests:
            if request.expiration_time < 0:  # it is given back
                self._set_at_s.pop((request.worker_pid, request.scope_id), None)
            else:
                self._set_at_s[request.worker_pid, request.scope_id] = time.time()
        super().register_timers(timer_requests)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Tell of those that have expired, and return none: what is returned, the server acts on."""
        expired = super().get_expired_timers(deadline - MARGIN_S)
        if not expired:
            return {}
        for pid, requests in expired.items():
            requests.sort(key=lambda request: request.expiration_time)
            first = next((each for each in requests if each.signal > 0), requests[0])
            after_s = first.expiration_time - self._set_at_s.get((pid, first.scope_id), first.expiration_time)
            # torch reads requests for a time and takes them then, so that it was set is known up to two looks late
            self._on_overrun(OverrunTimer(pid, first.scope_id, max(0.0, after_s) + LOOK_S, max(0, first.signal)))
        self.clear_timers(set(expired))
        return {}

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Also those of processes that have ended."""
        super().clear_timers(worker_pids)
        alive = {pid for pid, _ in self._set_at_s if pid not in worker_pids and self.is_process_running(pid)}
        self._set_at_s = {key: at for key, at in self._set_at_s.items() if key[0] in alive}


def _generated_path() -> str:
    return os.path.join(tempfile.gettempdir(), f"multiworld-timers-{uuid.uuid4()}")


def _claim(path: str) -> socket.socket | None:
    """Return what shows that this process makes the pipe there, and ends with it; None if another has it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        claim.bind(b"\0multiworld-timers-" + hashlib.sha256(os.path.realpath(path).encode()).hexdigest().encode())
    except OSError:
        claim.close()
        return None
    return claim


def _is_read(path: str) -> bool:
    """Whether somebody reads the named pipe there."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
    os.close(fd)
    return is_pipe

"""The thread that takes the snapshots of one node when they are due, and gives up a node that does not come back."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from ...errors import MultiworldError
from ..errors import NodeDeadError, RemoteOperationError, reason_of
from .node_recovery import NodeRecovery
from .schedule import Schedule

logger = logging.getLogger(__name__)

END_S: Final = 1.0


class Keeper:
    """``return_s``: how long a lost node may take until it is there again. Any thread."""

    def __init__(self, recovery: NodeRecovery, schedule: Schedule, return_s: float, noticed: threading.Event) -> None:
        """``noticed`` is set when there is something to look at."""
        self.recovery = recovery
        self._schedule, self._return_s, self._noticed = schedule, return_s, noticed
        self._is_closed = False
        self._taking = threading.Lock()  # one snapshot at a time
        number = recovery.session.number
        self._thread = threading.Thread(target=self._run, name=f"multiworld-snapshots-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def snapshot(self) -> None:
        """Take a snapshot now, and wait until it is complete. Raises NodeDeadError, RemoteOperationError, OSError."""
        with self._taking:
            self._schedule.began(now=time.monotonic())
            try:
                self.recovery.take_snapshot()
            except NodeDeadError:
                raise
            except RemoteOperationError:  # as of too little memory
                raise
            except MultiworldError as error:
                raise NodeDeadError(
                    self.recovery.session.number, "a snapshot", "recoverable()", reason_of(error)
                ) from None

    def close(self) -> None:
        """Take no more snapshots; the node is as any other now. One that is being taken is not waited for."""
        self._is_closed = True
        self._noticed.set()
        self.recovery.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(END_S)

    def _run(self) -> None:
        session = self.recovery.session
        while not self._is_closed and not session.is_over:
            self._noticed.clear()
            self._noticed.wait(self._look())

    def _look(self) -> float:
        """Do what is due; return after how many seconds to look again."""
        session, recovery, now = self.recovery.session, self.recovery, time.monotonic()
        if session.away is not None:
            left_s = recovery.lost_at + self._return_s - now
            if left_s <= 0:
                session.give_up(f"{session.away}; it did not come back within {self._return_s:g} s")
            return max(left_s, 0.0)
        if self._is_due(now):
            try:
                self.snapshot()
                if self._is_due(now):  # the log became full again meanwhile
                    return 0.0
            except NodeDeadError as error:
                logger.info("no snapshot of node %d: %s", session.number, error.reason)
            except (RemoteOperationError, OSError) as error:
                logger.warning("no snapshot of node %d: %s", session.number, error)
        return self._schedule.wait_s(now=now)

    def _is_due(self, now: float) -> bool:
        recovery = self.recovery
        return self._schedule.is_due(
            num_records=recovery.num_records, log_bytes=recovery.log_bytes, now=now, has_gap=recovery.has_gap
        )

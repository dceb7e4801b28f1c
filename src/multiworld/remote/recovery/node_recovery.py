"""Recovery of one node: its last snapshot, the log since, and how a new node gets both."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from ...wire.progress.operation import Operation
from ..errors import NodeDeadError, NodeMemoryError, NotReplayableWarning, RemoteOperationError
from ..protocol import recovering
from ..protocol.calls import DeclaredCall
from ..protocol.messages import OUT_OF_MEMORY
from ..protocol.specs import Spec
from ..session.lifetime import Link
from ..session.session import Session
from .log import CommandLog, Repeated
from .schedule import MAX_LOG_BYTES, MAX_LOSSES, Losses
from .snapshot import Allocate, Snapshot, in_memory, receive

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""How much of the log a node gets at most before it has executed it."""
WINDOW_RECORDS: Final = 32 * 1024
LAST_PARTS: Final = 64
"""When so few parts of the log are left, the master issues nothing meanwhile."""


@dataclass(frozen=True, kw_only=True)
class RecoveryStatistics:
    """``log_bytes``, ``num_records``: since the last snapshot. ``snapshot_age_s``: since that was complete.

    ``num_recoveries``: how often the node was made anew; ``last_recovery_s``: how long that took, from the new worlds
    until all was sent, and ``last_num_records``: how many records were sent again.
    """

    log_bytes: int
    num_records: int
    num_snapshots: int
    snapshot_bytes: int
    snapshot_age_s: float
    num_recoveries: int
    last_recovery_s: float
    last_num_records: int


class NodeRecovery:
    """``notice`` is called when the log is full, when a call can't be made twice, and when the node is lost or back.

    Methods of ``session.recovering.Recovery`` are called by the session; ``take_snapshot`` by one thread, ``make_anew``
    by another.
    """

    def __init__(
        self,
        session: Session,
        *,
        raises: bool = False,
        allocate: Allocate = in_memory,
        max_bytes: int = MAX_LOG_BYTES,
        notice: Callable[[], None] = lambda: None,
    ) -> None:
        self.session, self.raises = session, raises
        self._allocate, self._notice = allocate, notice
        self._losses = Losses()
        self._snapshot: Snapshot | None = None
        self._completed_at = 0.0
        self._num_snapshots = self._num_recoveries = self._last_num_records = 0
        self._last_recovery_s = 0.0
        self.lost_at = 0.0
        # Held while a node gets snapshot and log: these must fit each other. Taken before the session's lock.
        self._replaced = threading.Lock()
        stream = session.stream
        with session.lock:
            stream.flush(may_wait=False)
            self._log: CommandLog[tuple[Tensor, Spec]] = CommandLog(
                stream.queue.position, stream.definitions, max_bytes, notice
            )
            session.recovery = self  # first: it raises for a node that has streams
            stream.queue.log = self._log
            session.before_call = self._before_call

    @property
    def log_bytes(self) -> int:
        return self._log.num_bytes

    @property
    def num_records(self) -> int:
        return len(self._log)

    @property
    def has_gap(self) -> bool:
        """Whether something can't be sent again, so that a snapshot is needed now."""
        return self._log.gap is not None

    @property
    def statistics(self) -> RecoveryStatistics:
        snapshot = self._snapshot
        return RecoveryStatistics(
            log_bytes=self.log_bytes,
            num_records=self.num_records,
            num_snapshots=self._num_snapshots,
            snapshot_bytes=0 if snapshot is None else snapshot.num_bytes,
            snapshot_age_s=0.0 if snapshot is None else time.monotonic() - self._completed_at,
            num_recoveries=self._num_recoveries,
            last_recovery_s=self._last_recovery_s,
            last_num_records=self._last_num_records,
        )

    def close(self) -> None:
        """From now on the node is as any other."""
        with self.session.lock:
            self.session.stream.queue.log = None
            self.session.recovery = None
            self.session.before_call = lambda call, line: None
        self.session.stream.room.look_again()
        if self.session.away is not None:
            self.session.give_up(f"{self.session.away}; remote.recoverable() ended before it was made anew")

    # ---- what the session asks

    def refusal(self) -> str:
        if self.session.away is None:
            self.lost_at = time.monotonic()
        self._notice()
        if self._snapshot is None:
            return "it has no snapshot yet"
        if self._log.gap is not None:
            return f"the call of {self._log.gap} can't be made again, and no snapshot behind it is complete"
        if not self._losses.may_return(self.session.stream.queue.confirmed):
            return f"it was lost {MAX_LOSSES + 1} times in a row and got no further: see the first operation below"
        return ""

    def keep_large(self, id_: int, elements: Tensor, spec: Spec) -> None:
        self._log.keep_large(id_, (elements, spec), elements.nbytes)

    def is_waiting(self, request: int) -> bool:
        return self._log.is_waiting(request)

    def answered(self, request: int, answer: bytes) -> None:
        self._log.answered(request, answer)

    def done(self, request: int) -> None:
        self._log.done(request)

    def _before_call(self, call: DeclaredCall, line: str) -> None:
        if not call.replayable:
            warnings.warn(NotReplayableWarning(self.session.number, call.name, line), stacklevel=2)
            self._notice()

    # ---- snapshots

    def take_snapshot(self) -> None:
        """Have the node take one, and keep it. Raises NodeDeadError if it is lost meanwhile, NodeMemoryError, OSError.

        When that fails, nobody waits for a shorter log before one succeeds.
        """
        try:
            self._take_snapshot()
        except (RemoteOperationError, OSError):
            self._log.can_be_cut = False
            raise
        else:
            self._log.can_be_cut = True
        finally:
            self.session.stream.room.look_again()

    def _take_snapshot(self) -> None:
        session, link = self.session, self.session.link
        waited = session.requests.ask_for(recovering.snapshot, "a snapshot", "recoverable()", is_users=False)
        try:
            if session.away is not None:
                raise NodeDeadError(session.number, "a snapshot", waited.line, session.away)
            encoded = session.requests.reply_on(link, waited)
            assert isinstance(encoded, memoryview)
            assert waited.position is not None
            snapshot = receive(link, waited.request, waited.position, bytes(encoded), self._allocate)
            if snapshot is None:
                raise NodeMemoryError(
                    session.number,
                    "a snapshot",
                    waited.line,
                    OUT_OF_MEMORY,
                    "there is none for copies of what is written",
                )
        finally:
            session.requests.close(waited.request)
        with self._replaced:
            self._snapshot = snapshot
            self._completed_at = time.monotonic()
            self._num_snapshots += 1
            with session.lock:
                self._log.drop_before(snapshot.position + 1)

    # ---- a new node

    def make_anew(self) -> None:
        """Send snapshot and log to the node, whose worlds stand. Raises MultiworldError if it is lost again."""
        session, stream = self.session, self.session.stream
        began = time.monotonic()
        with self._replaced:
            link, snapshot = session.link, self._snapshot
            assert snapshot is not None
            position = snapshot.position + 1
            request = session.requests.next()
            stream.executed_to = position
            stream.transmit(recovering.restore(request, self._log.definitions, snapshot.encoded))
            snapshot.send(link, request)
            window = _Window(session, link)
            while True:
                with session.lock:
                    parts = list(self._log.repeated(position))
                    if len(parts) <= LAST_PARTS and not any(part.arrivals for part in parts):
                        position = self._send_last(position)
                        break
                for part in parts:
                    window.wait(part)
                    self._send(link, part)
                    position = part.end
            self._num_recoveries += 1
            self._last_recovery_s = time.monotonic() - began
            self._last_num_records = position - snapshot.position - 1
        self._notice()

    def _send_last(self, position: int) -> int:
        """With the session's lock: after this the session sends by itself again."""
        session = self.session
        # What waits is taken into the log. A node that reports behind it, as it has executed all, was not lost by it.
        session.stream.request((recovering.REPORT, "a recovery", None))
        for part in self._log.repeated(position):
            self._start_sending(part)
            position = part.end
        if not session.came_back(session.link):
            raise NodeDeadError(session.number, "a recovery", "recoverable()", "it was lost while it was made anew")
        return position

    def _send(self, link: Link, part: Repeated) -> None:
        for sending in self._start_sending(part):
            self.session.loader.wait_sent(link, sending)

    def _start_sending(self, part: Repeated) -> list[Operation[None]]:
        large = [(id_, *self._log.large(id_)) for id_ in part.arrivals]
        sends = [self.session.loader.send_large(elements, id_, spec) for id_, elements, spec in large]
        self.session.stream.transmit(part.data)
        return sends


class _Window:
    """How far the log is ahead of a node that executes it."""

    def __init__(self, session: Session, link: Link) -> None:
        self._session, self._link = session, link
        self._sent: deque[tuple[int, int]] = deque()  # the position behind a part, its bytes
        self._bytes = 0

    def wait(self, part: Repeated) -> None:
        """Wait until the node has room for one more part. Raises MultiworldError if it is lost."""
        self._sent.append((part.end, len(part.data)))
        self._bytes += len(part.data)
        self._session.stream.room.wait_while(self._is_full)
        if self._link.lost or self._session.is_over:
            raise NodeDeadError(
                self._session.number, "a recovery", "recoverable()", "it was lost while it was made anew"
            )

    def _is_full(self) -> bool:
        executed_to = self._session.stream.executed_to
        while self._sent and self._sent[0][0] <= executed_to:
            self._bytes -= self._sent.popleft()[1]
        is_behind = bool(self._sent) and self._sent[-1][0] - executed_to > WINDOW_RECORDS
        is_full = len(self._sent) > 1 and (self._bytes > WINDOW_BYTES or is_behind)
        return is_full and not self._link.lost and not self._session.is_over

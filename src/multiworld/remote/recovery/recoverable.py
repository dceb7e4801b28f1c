"""``remote.recoverable()``: the nodes whose tensors come back when they are lost."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType

from ..errors import ConnectError
from ..session import open_connections
from ..session.session import Session
from .keeper import Keeper
from .node_recovery import NodeRecovery, RecoveryStatistics
from .schedule import MAX_LOG_BYTES, Schedule
from .snapshot import in_directory, in_memory

RETURN_S = 60.0


class Recoverable:
    """A context manager: at its end the nodes are as any other. All methods work from any thread."""

    def __init__(
        self,
        numbers: Collection[int],
        *,
        every_s: float,
        raises: bool = False,
        directory: str | None = None,
        max_log_bytes: int = MAX_LOG_BYTES,
        return_s: float = RETURN_S,
    ) -> None:
        Schedule(every_s)  # raises for one that is none
        self.numbers = frozenset(numbers)
        self._every_s, self._raises, self._max_log_bytes, self._return_s = every_s, raises, max_log_bytes, return_s
        self._allocate = in_memory if directory is None else in_directory(directory)
        self._lock = threading.Lock()  # guards the lines below
        self._keepers: dict[int, Keeper] = {}
        self._is_closed = False

    def __enter__(self) -> Recoverable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Recoverable nodes={sorted(self.numbers)} every_s={self._every_s:g}>"

    @property
    def statistics(self) -> Mapping[int, RecoveryStatistics]:
        """Of each node, by number."""
        return {number: keeper.recovery.statistics for number, keeper in self._present().items()}

    def snapshot(self) -> None:
        """Take a snapshot of each node now, and wait until all are complete.

        Raises NodeDeadError for a node that is lost meanwhile, RemoteOperationError for one that has too little memory.
        """
        for keeper in self._present().values():
            keeper.snapshot()

    def close(self) -> None:
        """The nodes are as any other from now on: one that is lost now is not made anew. Idempotent."""
        with self._lock:
            self._is_closed = True
            keepers, self._keepers = self._keepers, {}
        for keeper in keepers.values():
            keeper.close()

    def cover(self, session: Session) -> None:
        """Make what a new node has recoverable, from its first snapshot on."""
        if session.number in self.numbers and session.recovery is None and not session.is_over:
            keeper = self.begin(session)
            if keeper is not None:
                keeper.start()

    def begin(self, session: Session) -> Keeper | None:
        """Return what keeps the snapshots of a node; it is to be started. None: all is closed."""
        with self._lock:
            if self._is_closed:
                return None
            noticed = threading.Event()
            schedule = Schedule(self._every_s, max_log_bytes=self._max_log_bytes)
            recovery = NodeRecovery(
                session,
                raises=self._raises,
                allocate=self._allocate,
                max_bytes=self._max_log_bytes,
                notice=noticed.set,
            )
            keeper = self._keepers[session.number] = Keeper(recovery, schedule, self._return_s, noticed)
        return keeper

    def _present(self) -> dict[int, Keeper]:
        with self._lock:
            return dict(self._keepers)


def recoverable(
    every_s: float = 30.0,
    nodes: Iterable[int] | None = None,
    *,
    raises: bool = False,
    directory: str | None = None,
    max_log_bytes: int = MAX_LOG_BYTES,
    return_s: float = RETURN_S,
) -> Recoverable:
    """From now on, tensors of lost nodes come back: on the next process of the same number, with the same bits.

    The master keeps a snapshot of each node, ``every_s`` a new one, and the log of all commands since. When a node is
    lost and there again, it gets both. Handles stay what they are; operations that are issued meanwhile are kept, and
    waits wait. With ``raises``, a wait that the loss interrupts raises ``NodeReturnsError`` (a NodeDeadError) at once.

    ``nodes``: their numbers; default: all. ``directory``: keep snapshots in files there, not in memory. A log of more
    than ``max_log_bytes`` is cut by a snapshot at once; at twice that the master waits for it. ``return_s``: a node
    that is not there again by then is lost for good. The call waits for the first snapshots.

    Raises ConnectError, ValueError, NodeDeadError, RemoteOperationError; OSError for the directory.
    """
    connection = open_connections.present()  # the one that was opened last
    if connection is None:
        raise ConnectError("recoverable(): this process has no open connection to nodes")
    covered = Recoverable(
        list(connection.numbers) if nodes is None else list(nodes),
        every_s=every_s,
        raises=raises,
        directory=directory,
        max_log_bytes=max_log_bytes,
        return_s=return_s,
    )
    sessions = [connection.session_of(number) for number in sorted(covered.numbers)]
    for session in sessions:
        if session.recovery is not None:
            raise ValueError(f"node {session.number} is recoverable already: close that first")
    try:
        keepers = [keeper for session in sessions if (keeper := covered.begin(session)) is not None]
        for keeper in keepers:
            keeper.snapshot()
            keeper.start()
    except BaseException:
        covered.close()
        raise
    connection.keep_recoverable(covered)
    return covered

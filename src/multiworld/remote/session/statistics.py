"""What a master has issued, sent and waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .session import Session
from .sync_points import SyncPoints


@dataclass(frozen=True, kw_only=True)
class NodesStatistics:
    """``syncs``: how often the master waited for a value, and ``syncs_by_line`` where.

    ``num_waits``: how often it waited because a node was too far behind. Sizes in bytes.
    """

    num_commands: int
    num_batches: int
    sent_bytes: int
    fetched_bytes: int
    num_waits: int
    num_failures: int
    syncs: int
    syncs_by_line: Mapping[str, int]

    @classmethod
    def of(cls, sessions: Iterable[Session], sync_points: SyncPoints) -> NodesStatistics:
        sessions = list(sessions)
        each = [session.statistics for session in sessions]
        return cls(
            num_commands=sum(session.stream.queue.position for session in sessions),
            num_batches=sum(one.num_batches for one in each),
            sent_bytes=sum(one.sent_bytes for one in each),
            fetched_bytes=sum(one.fetched_bytes for one in each),
            num_waits=sum(session.stream.room.num_waits for session in sessions),
            num_failures=sum(session.stream.failures.total for session in sessions),
            syncs=sync_points.total,
            syncs_by_line=dict(sync_points.by_line),
        )

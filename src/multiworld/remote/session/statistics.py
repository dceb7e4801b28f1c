"""What a master has issued, sent and waited for, and what its nodes hold."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..protocol.messages import NodeStatistics
from .session import Session
from .sync_points import SyncPoints

ASK_S: Final = 1.0
"""A node that does not answer for so long is not waited for: it may be stopped."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One node. ``lost``: why it is lost; empty while it is there.

    Counts are of all its generations: ``num_commands`` were issued, and ``num_unconfirmed`` of these may not be
    executed yet. ``num_tensors`` are live on it, and ``memory_bytes`` has its process: None if it did not answer.
    """

    number: int
    generation: int
    lost: str
    host: str
    pid: int
    num_commands: int
    num_unconfirmed: int
    sent_bytes: int
    fetched_bytes: int
    num_waits: int
    num_failures: int
    num_tensors: int | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class NodesStatistics:
    """``syncs``: how often the master waited for a value, and ``syncs_by_line`` where.

    ``num_waits``: how often it waited because a node was too far behind. Sizes in bytes. ``nodes``: those that have
    come, by number.
    """

    num_commands: int
    num_batches: int
    sent_bytes: int
    fetched_bytes: int
    num_waits: int
    num_failures: int
    syncs: int
    syncs_by_line: Mapping[str, int]
    nodes: Mapping[int, NodeReport]

    @classmethod
    def of(cls, sessions: Iterable[Session], sync_points: SyncPoints) -> NodesStatistics:
        """Ask the nodes that are there, all at once."""
        sessions = list(sessions)
        nodes = reports(sessions)
        return cls(
            num_commands=sum(node.num_commands for node in nodes.values()),
            num_batches=sum(session.statistics.num_batches for session in sessions),
            sent_bytes=sum(node.sent_bytes for node in nodes.values()),
            fetched_bytes=sum(node.fetched_bytes for node in nodes.values()),
            num_waits=sum(node.num_waits for node in nodes.values()),
            num_failures=sum(node.num_failures for node in nodes.values()),
            syncs=sync_points.total,
            syncs_by_line=dict(sync_points.by_line),
            nodes=nodes,
        )


def reports(sessions: Sequence[Session], timeout_s: float = ASK_S) -> dict[int, NodeReport]:
    """Return a report of each node; ``sessions`` are all of its generations, the last one last."""
    by_node: dict[int, list[Session]] = {}
    for session in sessions:
        by_node.setdefault(session.number, []).append(session)
    answers = asked([each[-1] for each in by_node.values()], timeout_s)
    return {number: _report(by_node[number], answers.get(number)) for number in sorted(by_node)}


def asked(sessions: Sequence[Session], timeout_s: float) -> dict[int, NodeStatistics]:
    """Return what each node says of itself, by number, of those that say it within ``timeout_s``."""
    alive = [session for session in sessions if not session.is_over and session.away is None]
    answers: dict[int, NodeStatistics] = {}
    changed = threading.Condition()

    def ask(session: Session) -> None:
        def take(said: NodeStatistics) -> None:
            with changed:
                answers[session.number] = said
                changed.notify_all()

        session.start_statistics(take)

    for session in alive:
        ask(session)
    with changed:
        changed.wait_for(lambda: all(each.is_over or each.number in answers for each in alive), timeout_s)
        return dict(answers)


def _report(sessions: Sequence[Session], answer: NodeStatistics | None) -> NodeReport:
    last = sessions[-1]
    streams = [stream for session in sessions for stream in session.streams.all()]
    ended = [session.streams.ended for session in sessions]
    return NodeReport(
        number=last.number,
        generation=last.generation,
        lost=last.dead or last.ended or last.away or "",
        host="" if last.hello is None else last.hello.host,
        pid=0 if last.hello is None else last.hello.pid,
        num_commands=sum(stream.queue.position for stream in streams) + sum(each.num_commands for each in ended),
        num_unconfirmed=0 if last.is_over else sum(stream.queue.num_unconfirmed for stream in last.streams.all()),
        sent_bytes=sum(session.statistics.sent_bytes for session in sessions),
        fetched_bytes=sum(session.statistics.fetched_bytes for session in sessions),
        num_waits=sum(stream.room.num_waits for stream in streams) + sum(each.num_waits for each in ended),
        num_failures=sum(stream.failures.total for stream in streams),
        num_tensors=None if answer is None else answer.num_tensors,
        memory_bytes=None if answer is None else answer.memory_bytes,
    )

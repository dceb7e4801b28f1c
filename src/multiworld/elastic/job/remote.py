"""What a coordinator knows of the remote tensors in its job: what the master said last. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...world.launcher.remote_nodes import RemoteNode, RemoteNodes, RemoteWaits


@dataclass(frozen=True, kw_only=True)
class RemoteStatus:
    """The nodes of the master ``rank``, as told at ``at``, in Unix time; ``lines``: those that wait most.

    ``syncs``: how often the master waited for a value. ``ended``: it has closed the connection.
    """

    at: float
    rank: int
    syncs: int
    nodes: tuple[RemoteNode, ...]
    lines: tuple[RemoteWaits, ...]
    ended: bool
    left_out: int = 0


def remote_status(news: RemoteNodes, *, at: float) -> RemoteStatus:
    return RemoteStatus(
        at=round(at, 3),
        rank=news.rank,
        syncs=news.syncs,
        nodes=news.nodes,
        lines=news.lines,
        ended=news.ended,
        left_out=news.left_out,
    )

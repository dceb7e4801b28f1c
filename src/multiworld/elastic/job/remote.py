"""What a coordinator knows of the remote tensors in its job, and when the nodes end with their master. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ...world.launcher.remote_nodes import RemoteNode, RemoteNodes, RemoteWaits
from .layout import Slot
from .slots import Post, Posts, PostState

NODES_END_S = 5.0
"""Nodes have so long to end by themselves once their master has ended well."""


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


class RemoteMaster:
    """The worker that is the master of remote tensors, if the job has one: then all other workers are its nodes.

    Nodes end with it. One that has ended well is started again if the master fails after that, and if the master says
    that it needs it: a node that a former master released may end after the present one was started.
    """

    def __init__(self, posts: Posts) -> None:
        self._posts = posts
        self._rank: int | None = None
        self._is_done = False
        self._released: frozenset[str] = frozenset()  # workers
        self._stop_at = inf

    @property
    def stop_at(self) -> float:
        """When nodes that are still there are asked to end."""
        return self._stop_at

    def told(self, news: RemoteNodes, now: float) -> None:
        """A rank says that it is the master, and how its nodes stand.

        A coordinator that took over may hear it after the master's end.
        """
        if news.ended:
            self._released = frozenset(post.id for _, post in self._posts.items())
        if news.rank == self._rank:
            return
        self._rank = news.rank
        for _, post in self._ended():
            if post.rank == news.rank:
                self.succeeded(post, now)

    def lacking(self, news: RemoteNodes) -> list[tuple[Slot, Post]]:
        """Return the nodes that have ended well, and that their master needs."""
        lost = {node.number for node in news.nodes if node.lost}
        if self._is_done or news.ended or not lost:
            return []
        return [(slot, post) for slot, post in self._ended() if post.rank in lost and post.rank != self._rank]

    def was_released(self, node: Post) -> bool:
        """Whether the master had closed the connection to it: it was right to end."""
        return node.id in self._released

    def began_anew(self) -> None:
        """All workers are started again."""
        self._is_done, self._stop_at = False, inf

    def is_over_for(self, worker: Post) -> bool:
        """Whether a worker that ends now is a node whose master has ended well: then its work is done, too."""
        return self._is_done and worker.rank != self._rank

    def succeeded(self, worker: Post, now: float) -> None:
        """A worker has ended well. If it is the master, nodes that wait to be started again are done."""
        if self._rank is None or worker.rank != self._rank:
            return
        self._is_done, self._stop_at = True, now + NODES_END_S
        for slot in list(self._posts.idle()):
            self._posts.change(slot, PostState.SUCCEEDED)

    def nodes_to_stop(self, now: float) -> list[tuple[Slot, Post]]:
        """Return the nodes that are still there too long after their master, once."""
        if now < self._stop_at:
            return []
        self._stop_at = inf
        return self._posts.alive()

    def failed(self, worker: Post, now: float, is_there: Callable[[str], bool]) -> list[Post]:
        """A worker has failed. Return the nodes that have ended well and are started again, as it is the master.

        ``is_there``: whether the agent of a host is.
        """
        if self._rank is None or worker.rank != self._rank:
            return []
        nodes = [(slot, post) for slot, post in self._ended() if is_there(slot.agent)]
        for slot, _ in nodes:
            self._posts.vacate(slot, now)
        return [post for _, post in nodes]

    def _ended(self) -> list[tuple[Slot, Post]]:
        """Return the workers that have ended well."""
        return [(slot, post) for slot, post in self._posts.items() if post.state is PostState.SUCCEEDED]

"""Decide which workers are started now, and which get another place. Pure."""

from __future__ import annotations

import itertools
from collections import deque

from .actions import Action, Reassign, Regroup, Start
from .layout import AgentInfo, Layout, Slot
from .nodes import Nodes
from .restart import Restarts
from .slots import Post, Posts, PostState

MAX_PLACES = 128  # that are given out in one decision: the next one follows when the coordinator has listened
MAX_HOSTS = 256  # one decision looks at the workers of so many, for the same reason


class Placement:
    """Gives the workers of one job their places, some of them at a time. ``term``: of its coordinator."""

    def __init__(self, nodes: Nodes, posts: Posts, restarts: Restarts, *, term: int) -> None:
        self._nodes, self._posts, self._restarts, self._term = nodes, posts, restarts, term
        self._ids = itertools.count(1)
        self._layout: Layout | None = None  # the last
        self._made_of: tuple[list[AgentInfo], int, tuple[str, int]]
        self._untold: deque[str] = deque()  # hosts whose running workers may have other places in it

    @property
    def is_told(self) -> bool:
        """Whether running workers know of their places in the last layout."""
        return not self._untold

    def waiting(self) -> list[tuple[Slot, Post]]:
        """Return what is to be started."""
        leaving = self._leaving() if self._posts.idle() else set()
        return [(slot, post) for slot, post in self._posts.idle().items() if slot.agent not in leaving]

    def go_on(self, generation: int, master: tuple[str, int], now: float) -> list[Action]:
        """Start what is due, and tell running workers of places that changed. ``master``: the generation's store."""
        made_of = (self._nodes.active_agents, generation, master)
        if self._layout is None or self._made_of != made_of:
            self._made_of, self._layout, self._untold = made_of, Layout(*made_of), deque(self._nodes.active)
        actions = self._tell(self._layout) if self._untold else []
        due = [slot for slot, post in self.waiting() if post.not_before <= now]
        for slot in due[: max(0, MAX_PLACES - len(actions))]:
            worker = self._posts[slot]
            worker.id = f"{self._term}.{next(self._ids)}"
            worker.assignment = self._layout.assignment(slot, restarts=self._restarts.count(slot))
            worker.membership = self._layout.membership
            worker.started_at = now
            worker.worlds = frozenset()
            self._posts.change(slot, PostState.RUNNING)
            actions.append(Start(agent=slot.agent, worker=worker.id, assignment=worker.assignment))
        return actions

    def _leaving(self) -> set[str]:
        return self._nodes.leaving(self._posts.succeeded())

    def _tell(self, layout: Layout) -> list[Action]:
        """Tell the next workers that run where they are now. All of one host at once: no two may have the same rank."""
        actions: list[Action] = []
        regrouped: list[str] = []
        membership, leaving = layout.membership, self._leaving()
        for _ in range(min(MAX_HOSTS, len(self._untold))):
            agent = self._untold.popleft()
            posts = self._posts.on(agent).values()
            outdated = [post for post in posts if post.state is PostState.RUNNING and post.membership is not membership]
            if not outdated or agent in leaving:
                continue
            if layout.have_moved(agent, [post.told() for post in outdated]):
                actions += [self._move(agent, post, layout) for post in outdated]
            elif not all(post.is_of(membership) for post in outdated):
                regrouped.append(agent)
            for post in outdated:
                post.membership = membership
            if len(actions) >= MAX_PLACES:
                break
        if regrouped:
            actions.append(Regroup(agents=tuple(regrouped), membership=membership))
        return actions

    def _move(self, agent: str, post: Post, layout: Layout) -> Reassign:
        before = post.told()
        post.assignment = layout.assignment(Slot(agent, before.local_rank), restarts=before.restarts)
        return Reassign(agent=agent, worker=post.id, assignment=post.assignment)

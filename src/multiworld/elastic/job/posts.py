"""The slots of a job and what stands in them: which workers run, are being stopped, or have ended well. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from .actions import Stop, WorkerReport
from .assignment import Assignment
from .layout import Slot

__all__ = ["Post", "PostState", "Posts"]


class PostState(enum.Enum):
    """What a slot's worker is doing."""

    IDLE = "idle"  # it is to be started
    RUNNING = "running"
    STOPPING = "stopping"  # as we have ordered
    SUCCEEDED = "succeeded"


@dataclass
class Post:
    """What stands in a slot. ``not_before``: when it may be started."""

    state: PostState = PostState.IDLE
    id: str = ""
    assignment: Assignment | None = None
    started_at: float = 0.0
    not_before: float = 0.0
    uses_multiworld: bool = False
    worlds: set[str] = field(default_factory=set)

    @property
    def rank(self) -> int | None:
        return None if self.assignment is None else self.assignment.rank

    @property
    def is_alive(self) -> bool:
        return self.state in (PostState.RUNNING, PostState.STOPPING)

    @classmethod
    def of_report(cls, report: WorkerReport, now: float) -> Post:
        """Return what an agent says of it to a coordinator that takes over."""
        running = PostState.STOPPING if report.stopping else PostState.RUNNING
        return cls(
            state=PostState.SUCCEEDED if report.succeeded else running,
            id=report.worker,
            assignment=report.assignment,
            started_at=now,
            uses_multiworld=report.uses_multiworld,
            worlds=set(report.worlds),
        )


class Posts(dict[Slot, Post]):
    """All slots of the hosts that have ranks, but for hosts that are gone."""

    def alive(self) -> list[Slot]:
        return [slot for slot, post in self.items() if post.is_alive]

    def slot_of(self, agent: str, worker: str) -> Slot | None:
        """Return the slot in which that worker is alive, if it is."""
        for slot, post in self.items():
            if slot.agent == agent and post.id == worker:
                return slot if post.is_alive else None
        return None

    def find(self, agent: str, worker: str) -> Post | None:
        slot = self.slot_of(agent, worker)
        return None if slot is None else self[slot]

    def has_begun(self) -> bool:
        return any(post.state is not PostState.IDLE for post in self.values())

    def succeeded(self) -> set[str]:
        """Return the hosts whose workers have all ended well."""
        others = {slot.agent for slot, post in self.items() if post.state is not PostState.SUCCEEDED}
        return {slot.agent for slot in self} - others

    def all_succeeded(self) -> bool:
        return bool(self) and all(post.state is PostState.SUCCEEDED for post in self.values())

    def drop_lost(self, agents: Collection[str]) -> None:
        """Forget what ran on hosts that are not among ``agents``; what has ended well there has."""
        for slot in [slot for slot in self if slot.agent not in agents]:
            if self[slot].state is not PostState.SUCCEEDED:
                del self[slot]

    def stop(self, slots: Iterable[Slot], signum: int, grace_s: float, *, forced: bool = False) -> list[Stop]:
        """Return the orders to stop those that run; ``forced``: also those that are being stopped already."""
        by_agent: dict[str, list[str]] = {}
        for slot in slots:
            post = self[slot]
            if post.state is PostState.RUNNING or forced:
                post.state = PostState.STOPPING
                by_agent.setdefault(slot.agent, []).append(post.id)
        return [
            Stop(agent=agent, workers=tuple(workers), signum=int(signum), grace_s=grace_s)
            for agent, workers in by_agent.items()
        ]

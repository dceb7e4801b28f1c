"""The slots of a job and what stands in them: which workers run, are being stopped, or have ended well. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from .actions import Stop, WorkerReport
from .assignment import Assignment, Membership
from .layout import Slot


class PostState(enum.Enum):
    """What a slot's worker is doing."""

    IDLE = "idle"  # it is to be started
    RUNNING = "running"
    STOPPING = "stopping"  # as we have ordered
    SUCCEEDED = "succeeded"


ALIVE = (PostState.RUNNING, PostState.STOPPING)


@dataclass(slots=True)
class Post:
    """What stands in a slot. ``not_before``: when it may be started. ``state``: only ``Posts`` changes it."""

    state: PostState = PostState.IDLE
    id: str = ""
    assignment: Assignment | None = None
    """What its agent was told."""
    membership: Membership | None = None
    """What its agent was told since, of the sizes and the store."""
    started_at: float = 0.0
    not_before: float = 0.0
    uses_multiworld: bool = False
    worlds: frozenset[str] = frozenset()

    @property
    def rank(self) -> int | None:
        return None if self.assignment is None else self.assignment.rank

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    def is_of(self, membership: Membership) -> bool:
        """Whether its agent knows that it is of this membership."""
        return self.membership is membership or (self.membership is None and membership.holds(self.told()))

    def place(self, role: str) -> Assignment:
        """Return its place as its agent knows it."""
        return self.told() if self.membership is None else self.membership.renewed(self.told(), role)

    def told(self) -> Assignment:
        assert self.assignment is not None, "a worker that was started has a place"
        return self.assignment

    @classmethod
    def of_report(cls, report: WorkerReport, now: float, age_s: float) -> Post:
        """Return what an agent says of it to a coordinator that takes over."""
        running = PostState.STOPPING if report.stopping else PostState.RUNNING
        return cls(
            state=PostState.SUCCEEDED if report.succeeded else running,
            id=report.worker,
            assignment=report.assignment,
            started_at=now - age_s,
            uses_multiworld=report.uses_multiworld,
            worlds=frozenset(report.worlds),
        )


class Posts:
    """All slots of the hosts that have ranks, but for hosts that are gone.

    Counted by host: there may be a thousand, and what happens on one of them must not cost a look at all workers.
    """

    def __init__(self) -> None:
        self._on: dict[str, dict[Slot, Post]] = {}  # by host
        self._num_alive: Counter[str] = Counter()  # by host
        self._num_unfinished: Counter[str] = Counter()  # by host: those that have not ended well
        self._idle: dict[Slot, Post] = {}

    def __iter__(self) -> Iterator[Slot]:
        return chain.from_iterable(self._on.values())

    def __getitem__(self, slot: Slot) -> Post:
        return self._on[slot.agent][slot]

    def get(self, slot: Slot) -> Post | None:
        return self.on(slot.agent).get(slot)

    def items(self) -> Iterator[tuple[Slot, Post]]:
        return chain.from_iterable(posts.items() for posts in self._on.values())

    def put(self, slot: Slot, post: Post) -> None:
        """Let this stand in the slot, instead of what does."""
        if self.get(slot) is not None:
            self._drop(slot)
        self._on.setdefault(slot.agent, {})[slot] = post
        self._count(slot, post, 1)

    def change(self, slot: Slot, state: PostState) -> None:
        post = self[slot]
        self._count(slot, post, -1)
        post.state = state
        self._count(slot, post, 1)

    def vacate(self, slot: Slot, now: float) -> None:
        """Its worker has ended: another may be started, from now on."""
        self.change(slot, PostState.IDLE)
        self[slot].not_before = now

    def _count(self, slot: Slot, post: Post, by: int) -> None:
        self._num_alive[slot.agent] += by * post.is_alive
        self._num_unfinished[slot.agent] += by * (post.state is not PostState.SUCCEEDED)
        if by < 0:
            self._idle.pop(slot, None)
        elif post.state is PostState.IDLE:
            self._idle[slot] = post

    def drop(self, agent: str) -> list[Slot]:
        """Forget a host; returns the slots that it had."""
        slots = [*self.on(agent)]
        for slot in slots:
            self._drop(slot)
        return slots

    def _drop(self, slot: Slot) -> None:
        self._count(slot, self._on[slot.agent].pop(slot), -1)
        if not self._on[slot.agent]:
            for by_host in (self._on, self._num_alive, self._num_unfinished):
                del by_host[slot.agent]

    def on(self, agent: str) -> Mapping[Slot, Post]:
        return self._on.get(agent, {})

    def idle(self) -> Mapping[Slot, Post]:
        return self._idle

    def any_alive(self) -> bool:
        return any(self._num_alive.values())

    def alive(self) -> list[tuple[Slot, Post]]:
        return [each for each in self.items() if each[1].state in ALIVE]

    def alive_on(self, agent: str) -> list[tuple[Slot, Post]]:
        return [each for each in self.on(agent).items() if each[1].is_alive]

    def busy(self) -> set[str]:
        """Return the hosts with workers that are alive."""
        return {agent for agent, number in self._num_alive.items() if number}

    def slot_of(self, agent: str, worker: str) -> Slot | None:
        """Return the slot in which that worker is alive, if it is."""
        return next((slot for slot, post in self.alive_on(agent) if post.id == worker), None)

    def find(self, agent: str, worker: str) -> Post | None:
        slot = self.slot_of(agent, worker)
        return None if slot is None else self[slot]

    def begin_anew(self, hosts: Iterable[tuple[str, int]], *, not_before: float) -> None:
        """Let nothing but idle slots be there: of these hosts, with so many workers each."""
        self._on = {
            agent: {Slot(agent, rank): Post(not_before=not_before) for rank in range(size)} for agent, size in hosts
        }
        self._idle = dict(self.items())
        self._num_alive = Counter()
        self._num_unfinished = Counter({agent: len(posts) for agent, posts in self._on.items()})

    def has_begun(self) -> bool:
        return len(self._idle) < sum(map(len, self._on.values()))

    def succeeded(self) -> set[str]:
        """Return the hosts whose workers have all ended well."""
        return {agent for agent, number in self._num_unfinished.items() if not number}

    def all_succeeded(self) -> bool:
        return bool(self._on) and not any(self._num_unfinished.values())

    def drop_lost(self, agents: Collection[str]) -> None:
        """Forget what ran on hosts that are not among ``agents``; what has ended well there has."""
        for agent in [agent for agent in self._on if agent not in agents]:
            for slot in [slot for slot, post in self.on(agent).items() if post.state is not PostState.SUCCEEDED]:
                self._drop(slot)

    def stop(self, workers: Iterable[tuple[Slot, Post]], how: Stop, *, forced: bool = False) -> list[Stop]:
        """Return the orders to stop those of these that run; ``forced``: also those that are being stopped already."""
        by_agent: dict[str, list[str]] = {}
        for slot, post in workers:
            if post.state is PostState.RUNNING or forced:
                post.state = PostState.STOPPING  # it is alive before and after, so no index changes
                by_agent.setdefault(slot.agent, []).append(post.id)
        signum, grace_s, quiet = how.signum, how.grace_s, how.quiet
        return [
            Stop(agent=agent, workers=tuple(ids), signum=signum, grace_s=grace_s, quiet=quiet)
            for agent, ids in by_agent.items()
        ]
